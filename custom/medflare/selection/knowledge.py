# SPDX-License-Identifier: Apache-2.0
"""From a site's texts to its knowledge graph and its sketch, as `knowledge` of site.yaml says (6.1).

Everything here runs at the site; of all this the sketch alone may leave.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from medflare.cohort.knowledge_settings import KnowledgeConfig
from medflare.cohort.settings import BackboneConfig
from medflare.errors import ConfigError
from medflare.selection.graph import RuleExtractor
from medflare.selection.imports import read_triples
from medflare.selection.minhash import Sketcher
from medflare.selection.sketch_key import SketchKey
from medflare.selection.sketches import Sketch
from medflare.selection.triples import Graph, Triple, graph_of
from medflare.selection.vocabulary import Spelled, Vocabulary, read_concepts

_log = logging.getLogger(__name__)


def site_vocabulary(config: KnowledgeConfig) -> Vocabulary:
    """The shared vocabulary; one that only finds names where `align` is false. DataError names the file."""
    concepts = read_concepts(config.vocabulary)
    return Vocabulary(concepts) if config.align else Spelled(concepts)


def site_graph(
    config: KnowledgeConfig, texts: Sequence[str], backbone: BackboneConfig | None = None
) -> dict[Triple, float]:
    """The site's graph: what its texts say and what `triples` add, each triple with its best confidence.

    Args:
        texts: of `cohort.knowledge_texts`; blank lines part chunks.
        backbone: the site's own language model, for `extractor: model`.

    Raises DataError for a vocabulary or triples that cannot be read, ConfigError where settings do not fit.
    A graph without any triple is returned as it is, with a warning.
    """
    vocabulary = site_vocabulary(config)
    found = graph_of(_triples(config, vocabulary, texts), config.least)
    if not found:
        _log.warning(
            "The knowledge graph of this site is empty: %d texts, %d names in the vocabulary, %d files of "
            "triples, least confidence %g. Its sketch says so, and the site counts as unlike all others.",
            len(texts),
            len(vocabulary.named),
            len(config.triples),
            config.least,
        )
    return found


def site_sketch(
    config: KnowledgeConfig, texts: Sequence[str], backbone: BackboneConfig | None = None
) -> Sketch:
    """The keyed signature of `site_graph`; ConfigError where the key's file is missing or no key."""
    sketcher = Sketcher(SketchKey.read(config.key, config.context), config.hashes, config.kind)
    return sketcher.sketch(site_graph(config, texts, backbone))


def _triples(
    config: KnowledgeConfig, vocabulary: Vocabulary, texts: Sequence[str]
) -> Iterator[tuple[Triple, float]]:
    if config.extractor == "model":
        raise ConfigError(
            "knowledge.extractor is 'model', which is not there yet; expected 'rules' or 'none'."
        )
    if config.extractor == "rules":
        yield from RuleExtractor(vocabulary, config.together).graph(texts).items()
    for file in config.triples:
        graph: Graph = read_triples(file, vocabulary)
        yield from graph.items()
