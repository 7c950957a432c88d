# SPDX-License-Identifier: Apache-2.0
"""From a site's texts to its knowledge graph and its sketch, as `knowledge` of site.yaml says.

Everything here runs at the site; of all this the sketch alone may leave.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from medflare.core.errors import ConfigError
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import BackboneConfig
from medflare.knowledge.completion import completed
from medflare.knowledge.encoder import NameEncoder
from medflare.knowledge.graph import RuleExtractor
from medflare.knowledge.imports import READERS, read_same
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.model_extraction import ModelExtractor
from medflare.knowledge.naming import Naming, representatives
from medflare.knowledge.nearest import Embed, NearestConcept, characters
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.sketches import Sketch
from medflare.knowledge.triples import Triple, graph_of
from medflare.knowledge.vocabulary import Spelled, Vocabulary, read_concepts
from medflare.models.backbone import load_backbone
from medflare.models.plain_text import PlainText

_log = logging.getLogger(__name__)


def site_graph(
    config: KnowledgeConfig, texts: Sequence[str], backbone: BackboneConfig | None = None
) -> dict[Triple, float]:
    """The site's graph: what its texts say and what `triples` add, each triple with its best confidence.

    Args:
        texts: of `cohort.knowledge_texts`; blank lines part chunks.
        backbone: the site's own language model, for `extractor: model` and `nearest_by: backbone`.

    Raises DataError for a vocabulary or triples that cannot be read, ConfigError where settings do not fit or
    an encoder cannot be used.
    A graph without any triple is returned as it is, with a warning.
    """
    concepts = read_concepts(config.vocabulary)
    vocabulary = Vocabulary(concepts) if config.align else Spelled(concepts)
    model = _model(config, backbone)
    said = list[tuple[Triple, float]]()
    if config.extractor == "rules":
        said += RuleExtractor(vocabulary, config.together).graph(texts).items()
    named = _naming(config, vocabulary, model).named(_unnamed(config, texts, model))
    found = graph_of([*said, *named], config.least)
    if not found:
        _warn_of_empty(config, texts, vocabulary)
    return found if config.completion is None else found | completed(found, config.completion, config.least)


def site_sketch(
    config: KnowledgeConfig, texts: Sequence[str], backbone: BackboneConfig | None = None
) -> Sketch:
    """The keyed signature of `site_graph`; ConfigError where the key's file is missing or no key."""
    sketcher = Sketcher(SketchKey.read(config.key, config.context), config.hashes, config.kind)
    return sketcher.sketch(site_graph(config, texts, backbone))


def _model(config: KnowledgeConfig, backbone: BackboneConfig | None) -> PlainText | None:
    """The site's language model, where a setting asks for one."""
    extracts = config.extractor == "model"
    if not extracts and not (config.align and config.nearest is not None and config.nearest_by == "backbone"):
        return None
    own = backbone or BackboneConfig()
    if extracts and own.folder is None:
        raise ConfigError(
            "knowledge.extractor is 'model', and the site's backbone is the embedded one, which cannot read "
            "triples out of a text. Name a model in backbone.folder of site.yaml, or set extractor: rules."
        )
    return PlainText(load_backbone(own.folder, own.precision, embedded="notes_decoder"))


def _unnamed(
    config: KnowledgeConfig, texts: Sequence[str], model: PlainText | None
) -> Iterator[tuple[Triple, float]]:
    """Triples in words, which have yet to become concepts."""
    if config.extractor == "model" and model is not None:
        yield from ModelExtractor(model, config.answer_tokens).triples(texts)
    for graph in config.triples:
        yield from READERS[graph.form](graph.path)


def _naming(config: KnowledgeConfig, vocabulary: Vocabulary, model: PlainText | None) -> Naming:
    if not config.align:
        return Naming(vocabulary, relate=lambda words: None)
    near = None
    if config.nearest is not None:
        near = NearestConcept(vocabulary, _embed(config, vocabulary, model), config.nearest)
    same = representatives(pair for file in config.same for pair in read_same(file))
    return Naming(vocabulary, same, near)


def _embed(config: KnowledgeConfig, vocabulary: Vocabulary, model: PlainText | None) -> Embed:
    """What makes vectors of names, as `nearest_by` says."""
    if config.nearest_by == "encoder" and config.encoder is not None:
        return NameEncoder(config.encoder, config.pooling).embed
    if config.nearest_by == "backbone" and model is not None:
        return model.embed
    return characters(name for concept in vocabulary.concepts.values() for name in concept.names)


def _warn_of_empty(config: KnowledgeConfig, texts: Sequence[str], vocabulary: Vocabulary) -> None:
    _log.warning(
        "The knowledge graph of this site is empty: %d texts, %d names in the vocabulary, %d files of "
        "triples, least confidence %g. Its sketch says so, and the site counts as unlike all others.",
        len(texts),
        len(vocabulary.named),
        len(config.triples),
        config.least,
    )
