# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the nearest concept of an unknown name, by embedder and threshold.

    python benchmarks/nearest_concept.py KG_FOLDER [--encoder FOLDER] [--backbone FOLDER] [--diseases OBO ...]

KG_FOLDER holds symp.obo and doid_hierarchy.tsv. Every exact synonym of the Symptom Ontology is held out in
turn, in five folds: its concept keeps all names of the other folds. `right` is the share of held-out synonyms
whose nearest concept is theirs and near enough, `wrong` the share that goes to another concept. `misspelt`
are the same two shares for preferred names with one letter changed, left out or doubled. `strange` is the
share of names of the Disease Ontology that no symptom has, and that are given to a symptom all the same.

With --diseases the ontologies change places: concepts are the diseases of these OBO files, which have the
synonyms (the whole doid.obo, or subsets of it), and those of doid_hierarchy.tsv that they lack; symptoms are
the strangers.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from medflare.knowledge.name_encoder import NameEncoder
from medflare.knowledge.nearest_concept import Embed, NearestConcept, characters
from medflare.knowledge.vocabulary import Concept, Vocabulary, read_concepts, read_obo, read_table
from medflare.models.backbone import load_backbone
from medflare.models.plain_text import PlainText

LEAST = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FOLDS = 5
Answer = tuple[str, float] | None


def held_out(concepts: Sequence[Concept], fold: int) -> tuple[list[Concept], list[tuple[str, str]]]:
    """Concepts without the synonyms of a fold, and these as (name, concept)."""
    pairs = [(name, c.concept_id) for c in concepts for name in c.names[1:]]
    random.Random(0).shuffle(pairs)
    hidden = pairs[fold::FOLDS]
    gone = set(hidden)
    kept = [
        replace(c, names=tuple(n for i, n in enumerate(c.names) if not i or (n, c.concept_id) not in gone))
        for c in concepts
    ]
    known = Vocabulary(kept)
    return kept, [(name, key) for name, key in hidden if known.lookup(name) is None]


def misspelt(concepts: Sequence[Concept]) -> list[tuple[str, str]]:
    """(a preferred name of six letters or more with one slip, its concept)."""
    random_ = random.Random(1)
    found = []
    for concept in concepts:
        name = concept.names[0]
        if len(name) < 6:
            continue
        at = random_.randrange(1, len(name) - 1)
        letter = random_.choice((random_.choice("abcdefghijklmnopqrstuvwxyz"), "", name[at] * 2))
        found.append((name[:at] + letter + name[at + 1 :], concept.concept_id))
    known = Vocabulary(concepts)
    return [(name, key) for name, key in found if known.lookup(name) is None]


class Remembered:
    """A model that embeds each name once, whatever the fold; counts processor seconds."""

    def __init__(self, embed: Embed) -> None:
        self.embed, self.seconds = embed, 0.0
        self.rows: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self.rows]
        started = time.process_time()
        self.rows.update(zip(new, self.embed(new) if new else (), strict=True))
        self.seconds += time.process_time() - started
        return np.stack([self.rows[text] for text in texts])


def embedders(concepts: Sequence[Concept], models: dict[str, Remembered]) -> dict[str, Embed]:
    names = [name for concept in concepts for name in concept.names]
    return {"characters": characters(names), **models}


class Measured:
    """Answers of an embedder: (true concept, answer) of synonyms and slips, answers to strangers."""

    def __init__(self) -> None:
        self.synonyms: list[tuple[str, Answer]] = []
        self.slips: list[tuple[str, Answer]] = []
        self.strangers: list[Answer] = []


def measured(
    concepts: Sequence[Concept], strangers: Sequence[str], models: dict[str, Remembered]
) -> dict[str, Measured]:
    """By embedder; slips and strangers meet the whole vocabulary."""
    found: dict[str, Measured] = {}
    for fold in range(FOLDS):
        kept, hidden = held_out(concepts, fold)
        for name, embed in embedders(kept, models).items():
            own = found.setdefault(name, Measured())
            answers = NearestConcept(Vocabulary(kept), embed, least=-1.0).resolve(n for n, _ in hidden)
            own.synonyms += [(key, answers[synonym]) for synonym, key in hidden]
    slips = misspelt(concepts)
    for name, embed in embedders(concepts, models).items():
        near = NearestConcept(Vocabulary(concepts), embed, least=-1.0)
        answers = near.resolve(slip for slip, _ in slips)
        found[name].slips = [(key, answers[slip]) for slip, key in slips]
        found[name].strangers = list(near.resolve(strangers).values())
    return found


def shares(least: float, told: list[tuple[str, Answer]]) -> str:
    """Right and wrong among those that are near enough, as shares of all."""
    said = [(key, a[0]) for key, a in told if a is not None and a[1] >= least]
    right = sum(key == concept for key, concept in said)
    return f"{right / len(told):.3f} | {(len(said) - right) / len(told):.3f}"


def row(name: str, least: float, own: Measured) -> str:
    strange = np.mean([a is not None and a[1] >= least for a in own.strangers])
    return (
        f"| {name} | {least:g} | {shares(least, own.synonyms)} | {shares(least, own.slips)} | {strange:.3f} |"
    )


def ontologies(folder: Path, diseases: Sequence[Path]) -> tuple[list[Concept], list[str]]:
    """(concepts of the vocabulary, names that none of them has)."""
    symptoms, labels = read_obo(folder / "symp.obo"), read_table(folder / "doid_hierarchy.tsv")
    concepts, others = symptoms, labels
    if diseases:
        wanted = {concept.concept_id for concept in labels}
        told = {c.concept_id: c for c in read_concepts(diseases) if c.concept_id in wanted}
        concepts, others = [told.get(c.concept_id, c) for c in labels], symptoms
    known = Vocabulary(concepts)
    return concepts, [c.names[0] for c in others if known.lookup(c.names[0]) is None]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backbone", type=Path)
    parser.add_argument("--encoder", type=Path, action="append", default=[])
    parser.add_argument("--pooling", choices=("mean", "cls"), help="where the encoder's folder does not say")
    parser.add_argument("--diseases", type=Path, nargs="+", default=[])
    parser.add_argument("--strangers", type=int, default=1000)
    given = parser.parse_args()
    concepts, strangers = ontologies(given.folder, given.diseases)
    strangers = random.Random(0).sample(strangers, min(given.strangers, len(strangers)))
    decoder = PlainText(load_backbone(None, embedded="notes_decoder"))
    models = {"embedded notes decoder": Remembered(decoder.embed)}
    if given.backbone:
        models[given.backbone.name] = Remembered(PlainText(load_backbone(given.backbone)).embed)
    for folder in given.encoder:
        models[folder.name] = Remembered(NameEncoder(folder, given.pooling).embed)
    found = measured(concepts, strangers, models)
    first = next(iter(found.values()))
    names = sum(len(concept.names) for concept in concepts)
    print(
        f"{len(concepts)} concepts of {names} names, {len(first.synonyms)} synonyms held out, "
        f"{len(first.slips)} misspelt, {len(strangers)} strangers\n"
    )
    heads = ("embedder", "least", "right", "wrong", "misspelt right", "misspelt wrong", "strange")
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name, own in found.items():
        for least in LEAST:
            print(row(name, least, own))
    print("\nProcessor seconds to embed every name once:")
    for name, model in models.items():
        print(f"{name}: {len(model.rows)} names in {model.seconds:.1f}")


if __name__ == "__main__":
    main()
