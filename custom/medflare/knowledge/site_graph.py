# SPDX-License-Identifier: Apache-2.0
"""From a site's texts to its knowledge graph and its sketch, as `knowledge` of site.yaml says.

Everything here runs at the site; of all this the sketch alone may leave.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from medflare.core.errors import ConfigError
from medflare.core.sketch import Sketch
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import BackboneConfig
from medflare.knowledge.cohort_texts import KnowledgeText
from medflare.knowledge.completion import suggest_triples
from medflare.knowledge.imported_graphs import READERS, read_same
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.model_extraction import ModelExtractor
from medflare.knowledge.name_encoder import NameEncoder
from medflare.knowledge.naming import Naming, representatives
from medflare.knowledge.nearest_concept import Embed, NearestConcept, characters
from medflare.knowledge.rule_extraction import RuleExtractor
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import Triple, graph_of
from medflare.knowledge.vocabulary import Spelled, Vocabulary, read_concepts
from medflare.models.backbone import load_backbone
from medflare.models.plain_text import PlainText

_log = logging.getLogger(__name__)


def site_graph(
    config: KnowledgeConfig, texts: Sequence[KnowledgeText], backbone: BackboneConfig | None = None
) -> dict[Triple, float]:
    """Return the site's graph: triples of its texts and of `triples`, each with its best confidence.

    Args:
        texts: of `cohort_texts.knowledge_texts`; blank lines part chunks.
        backbone: the site's own language model, for `extractor: model` and `nearest_by: backbone`.

    Returns:
        Triple -> confidence in (0, 1]. A graph without any triple is returned too, with a warning.

    Raises:
        DataError: a vocabulary or file of triples cannot be read.
        ConfigError: settings do not fit together, or an encoder cannot be used.
    """
    concepts = read_concepts(config.vocabulary)
    vocabulary = Vocabulary(concepts) if config.align else Spelled(concepts)
    model = _model(config, backbone)
    extracted = list[tuple[Triple, float]]()
    if config.extractor == "rules":
        extractor = RuleExtractor(vocabulary, config.together)
        for of_patients, chosen in _by_subject(texts):
            extracted += extractor.graph(chosen, of_patients=of_patients).items()
    named = _naming(config, vocabulary, model).named(_unnamed(config, texts, model))
    graph = graph_of([*extracted, *named], config.least)
    if not graph:
        _warn_of_empty(config, texts, vocabulary)
    return (
        graph
        if config.completion is None
        else graph | suggest_triples(graph, config.completion, config.least)
    )


def site_sketch(
    config: KnowledgeConfig, texts: Sequence[KnowledgeText], backbone: BackboneConfig | None = None
) -> Sketch:
    """Return the keyed sketch of `site_graph`; ConfigError if the key's file is missing or holds no key."""
    sketcher = Sketcher(SketchKey.read(config.key, config.context), config.hashes, config.kind)
    return sketcher.sketch(site_graph(config, texts, backbone))


def _model(config: KnowledgeConfig, backbone: BackboneConfig | None) -> PlainText | None:
    """Return the site's language model if a setting needs one."""
    extracts = config.extractor == "model"
    if not extracts and not (config.align and config.nearest is not None and config.nearest_by == "backbone"):
        return None
    chosen = backbone or BackboneConfig()
    if extracts and chosen.folder is None:
        raise ConfigError(
            "knowledge.extractor is 'model', and the site's backbone is the embedded one, which cannot read "
            "triples out of a text. Name a model in backbone.folder of site.yaml, or set extractor: rules."
        )
    return PlainText(load_backbone(chosen.folder, chosen.precision, embedded="notes_decoder"))


def _unnamed(
    config: KnowledgeConfig, texts: Sequence[KnowledgeText], model: PlainText | None
) -> Iterator[tuple[Triple, float]]:
    """Yield triples whose names are words of the text, not yet concepts."""
    if config.extractor == "model" and model is not None:
        extractor = ModelExtractor(model, config.answer_tokens)
        for of_patients, chosen in _by_subject(texts):
            yield from extractor.triples(chosen, of_patients=of_patients)
    for graph in config.triples:
        yield from READERS[graph.form](graph.path)


def _by_subject(texts: Sequence[KnowledgeText]) -> Iterator[tuple[bool, list[str]]]:
    """Yield whether texts speak of patients, and those that do or do not (DD-13)."""
    for of_patients in (True, False):
        yield of_patients, [text.text for text in texts if text.of_patient is of_patients]


def _naming(config: KnowledgeConfig, vocabulary: Vocabulary, model: PlainText | None) -> Naming:
    if not config.align:
        return Naming(vocabulary, relate=lambda words: None)
    near = None
    if config.nearest is not None:
        near = NearestConcept(vocabulary, _embed(config, vocabulary, model), config.nearest)
    same = representatives(pair for file in config.same for pair in read_same(file))
    return Naming(vocabulary, same, near)


def _embed(config: KnowledgeConfig, vocabulary: Vocabulary, model: PlainText | None) -> Embed:
    """Return the function that embeds names, as `nearest_by` says."""
    if config.nearest_by == "encoder" and config.encoder is not None:
        return NameEncoder(config.encoder, config.pooling).embed
    if config.nearest_by == "backbone" and model is not None:
        return model.embed
    return characters(name for concept in vocabulary.concepts.values() for name in concept.names)


def _warn_of_empty(config: KnowledgeConfig, texts: Sequence[KnowledgeText], vocabulary: Vocabulary) -> None:
    _log.warning(
        "The knowledge graph of this site is empty: %d texts, %d names in the vocabulary, %d files of "
        "triples, least confidence %g. Its sketch says so, and the site counts as unlike all others.",
        len(texts),
        len(vocabulary.named),
        len(config.triples),
        config.least,
    )
