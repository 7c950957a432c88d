# SPDX-License-Identifier: Apache-2.0
"""Triples that a graph suggests by itself, found by an embedding of it and scored by what was hidden.

The embedding is PyKEEN's (Ali et al. 2021): RotatE, TransE or ComplEx. A tenth of the triples is hidden, the
rest is learnt, and for each head and relation the best tails are proposed. How many of the proposals of a
score are hidden facts gives that score its confidence (Platt 1999); proposals that are no known triple are
added with it. The confidence is low by nature: true facts that are in no text count as wrong.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from medflare.core.errors import ConfigError
from medflare.core.garbage import frozen_garbage
from medflare.data.settings.knowledge import CompletionConfig
from medflare.knowledge.rule_extraction import PATIENT, SYMMETRIC, ordered
from medflare.knowledge.triples import Graph, Triple

_log = logging.getLogger(__name__)
HIDDEN = 0.1
"""Part of the triples on which scores are measured."""
FEWEST = 50
"""Triples below which nothing is learnt."""


class Recipe(NamedTuple):
    """Training settings of an embedding, in PyKEEN's names."""

    loss: str
    loss_settings: Mapping[str, Any]
    loop: str
    loop_settings: Mapping[str, Any]
    rate: float
    batch: int


_AGAINST = {"negative_sampler": "basic", "negative_sampler_kwargs": {"num_negs_per_pos": 32}}
_FAR = {"margin": 6.0, "adversarial_temperature": 0.5}
RECIPES = {
    "RotatE": Recipe("nssa", _FAR, "slcwa", _AGAINST, 0.01, 512),
    "TransE": Recipe("nssa", _FAR, "slcwa", _AGAINST, 0.01, 512),
    "ComplEx": Recipe("crossentropy", {}, "lcwa", {}, 0.05, 256),
}
"""Distances learn against drawn false triples weighed by how likely they look (Sun et al. 2019), ComplEx
against all tails at once (Lacroix et al. 2018)."""


class Proposal(NamedTuple):
    """A triple that the embedding believes in; scores are its own and comparable within one embedding."""

    triple: Triple
    score: float


def suggest_triples(graph: Graph, settings: CompletionConfig, least: float = 0.0) -> dict[Triple, float]:
    """Return triples that the graph lacks and its embedding suggests, with confidence; none of a small graph.

    Statements about the patient are neither learnt nor added.

    Raises:
        ConfigError: PyKEEN is missing.
    """
    _require_pykeen()
    facts = sorted(triple for triple in graph if triple.head != PATIENT)
    frequent = Counter(triple.relation for triple in facts)
    wanted = {relation for relation, count in frequent.items() if count >= settings.support}
    if len(facts) < FEWEST or not wanted:
        _log.warning(
            "knowledge.completion adds nothing: %d triples, %d relations with %d or more; %d triples and one "
            "such relation are needed.",
            len(facts),
            len(wanted),
            settings.support,
            FEWEST,
        )
        return {}
    known, hidden = _parted(facts, wanted, settings.seed)
    proposals = _proposals(known, wanted, settings)
    confidence = calibrated([p.score for p in proposals], [p.triple in hidden for p in proposals])
    added = {
        proposal.triple: sure
        for proposal, sure in zip(proposals, confidence, strict=True)
        if sure >= max(settings.least_score, least) and proposal.triple not in graph
    }
    right = sum(proposal.triple in hidden for proposal in proposals)
    _log.info(
        "Completion: %d proposals, %d of them among %d hidden triples, %d added to %d.",
        len(proposals),
        right,
        len(hidden),
        len(added),
        len(graph),
    )
    return added


def calibrated(scores: list[float], facts: list[bool]) -> list[float]:
    """Return the confidence of each score: the share of facts among similar ones, by logistic regression.

    0 for all where no proposal, or every one, was a fact: nothing can be learnt from that. It never falls
    with the score: an embedding that ranks facts last is no guide.
    """
    from sklearn.linear_model import LogisticRegression

    if len(set(facts)) < 2:
        return [0.0] * len(scores)
    values = np.asarray(scores, float)
    values = ((values - values.mean()) / max(float(values.std()), 1e-12))[:, None]
    regression = LogisticRegression(C=1e6).fit(values, facts)
    if regression.coef_[0, 0] <= 0:
        return [0.0] * len(scores)
    sure: list[float] = regression.predict_proba(values)[:, 1].tolist()
    return sure


def _parted(facts: list[Triple], wanted: set[str], seed: int) -> tuple[list[Triple], set[Triple]]:
    """Return triples to learn from, and hidden ones of frequent relations whose entities are seen."""
    occurrences = Counter(name for triple in facts for name in (triple.head, triple.tail))
    order = np.random.default_rng(seed).permutation(len(facts))
    hidden, most = set[Triple](), round(HIDDEN * len(facts))
    for i in order:
        triple = facts[int(i)]
        if (
            len(hidden) < most
            and triple.relation in wanted
            and min(occurrences[triple.head], occurrences[triple.tail]) > 1
        ):
            hidden.add(triple)
            occurrences.subtract((triple.head, triple.tail))
    return [triple for triple in facts if triple not in hidden], hidden


def _proposals(known: list[Triple], wanted: set[str], settings: CompletionConfig) -> list[Proposal]:
    """Return the best tails of every head and frequent relation seen together, without known triples."""
    import torch

    factory, model = _learnt(known, settings)
    tails: dict[tuple[str, str], set[str]] = defaultdict(set)
    for triple in known:
        tails[triple.head, triple.relation].add(triple.tail)
        if triple.relation in SYMMETRIC:
            tails[triple.tail, triple.relation].add(triple.head)
    pairs = sorted(pair for pair in tails if pair[1] in wanted)
    names = {number: name for name, number in factory.entity_to_id.items()}
    best: dict[Triple, float] = {}
    for start in range(0, len(pairs), 256):
        part = pairs[start : start + 256]
        numbers = [[factory.entity_to_id[h], factory.relation_to_id[r]] for h, r in part]
        with torch.no_grad():
            scores = model.predict_t(torch.tensor(numbers)).double()
        for (head, relation), row in zip(part, scores, strict=True):
            out = [factory.entity_to_id[name] for name in (*tails[head, relation], head)]
            row[torch.tensor(out)] = -torch.inf
            top = row.topk(min(settings.top, len(row)))
            for score, number in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                if score > -np.inf:
                    triple = ordered(Triple(head, relation, names[number]))
                    best[triple] = max(score, best.get(triple, score))
    return [Proposal(triple, score) for triple, score in best.items()]


def _learnt(known: list[Triple], settings: CompletionConfig) -> tuple[Any, Any]:
    """Return PyKEEN's factory of the triples and the trained model."""
    import torch
    from pykeen.models import model_resolver
    from pykeen.training import training_loop_resolver
    from pykeen.triples import TriplesFactory

    from medflare.core.seeds import seeded

    recipe = RECIPES[settings.model]
    with _quiet("pykeen"), frozen_garbage(), seeded(settings.seed, devices=[]):
        factory = TriplesFactory.from_labeled_triples(
            np.array([tuple(triple) for triple in known], dtype=str),
            filter_out_candidate_inverse_relations=False,
        )
        model_class: Any = model_resolver.lookup(settings.model)
        model = model_class(
            triples_factory=factory,
            embedding_dim=settings.width,
            random_seed=settings.seed,
            loss=recipe.loss,
            loss_kwargs=dict(recipe.loss_settings),
        )
        batch = min(recipe.batch, max(32, len(known) // 8))
        loop: Any = training_loop_resolver.lookup(recipe.loop)(
            model=model,
            triples_factory=factory,
            optimizer=torch.optim.Adam(model.parameters(), lr=recipe.rate),
            **recipe.loop_settings,
        )
        loop.train(
            factory,
            num_epochs=settings.epochs,
            batch_size=batch,
            sub_batch_size=batch,
            use_tqdm=False,
            num_workers=0,
            pin_memory=False,
        )
        model.eval()
    return factory, model


def _require_pykeen() -> None:
    try:
        with _quiet("pykeen"), _own_subclasses():
            import pykeen.models  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"knowledge.completion needs PyKEEN, which cannot be imported here ({error}). Install it at this "
            "site with `pip install 'medflare[knowledge]'`, or set completion: null."
        ) from None


@contextlib.contextmanager
def _own_subclasses() -> Iterator[None]:
    """PyKEEN can be imported after bitsandbytes, as in every process that trains an adapter.

    class_resolver (0.8) registers subclasses by name and leaves out those of other packages, but not what is
    derived from them in their own: bitsandbytes' Adagrad then collides with torch's, and the import ends.
    """
    from class_resolver import api

    original = api.get_subclasses

    def own_only(base: type, *, exclude_external: bool = True, **given: Any) -> list[type]:
        package = base.__module__.partition(".")[0]
        return [
            one
            for one in original(base, exclude_external=exclude_external, **given)
            if not exclude_external or one.__module__.partition(".")[0] == package
        ]

    with mock.patch.object(api, "get_subclasses", own_only):
        yield


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without a library's remarks below a warning."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
