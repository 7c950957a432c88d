# SPDX-License-Identifier: Apache-2.0
"""How often the nearest concept of an unknown name is the right one, by embedder and threshold.

    python benchmarks/nearest_concept.py KG_FOLDER [--backbone FOLDER]

KG_FOLDER holds symp.obo and doid_hierarchy.tsv. Every exact synonym of the Symptom Ontology is held out in
turn, in five folds: its concept keeps all names of the other folds. `right` is the share of held-out synonyms
whose nearest concept is theirs and near enough, `wrong` the share that goes to another concept. `misspelt`
are the same two shares for preferred names with one letter changed, left out or doubled. `strange` is the
share of names of the Disease Ontology that no symptom has, and that are given to a symptom all the same.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from medflare.models.backbone import load_backbone
from medflare.models.plain_text import PlainText
from medflare.selection.nearest import Embed, NearestConcept, characters
from medflare.selection.vocabulary import Concept, Vocabulary, read_obo

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


def embedders(concepts: Sequence[Concept], models: dict[str, PlainText]) -> dict[str, Embed]:
    names = [name for concept in concepts for name in concept.names]
    return {"characters": characters(names)} | {name: model.embed for name, model in models.items()}


class Measured:
    """What an embedder answered: (true concept, answer) of synonyms and slips, answers to strangers."""

    def __init__(self) -> None:
        self.synonyms: list[tuple[str, Answer]] = []
        self.slips: list[tuple[str, Answer]] = []
        self.strangers: list[Answer] = []
        self.seconds = 0.0


def measured(
    concepts: Sequence[Concept], strangers: Sequence[str], models: dict[str, PlainText]
) -> dict[str, Measured]:
    """By embedder; slips and strangers meet the whole vocabulary."""
    found: dict[str, Measured] = {}
    for fold in range(FOLDS):
        kept, hidden = held_out(concepts, fold)
        for name, embed in embedders(kept, models).items():
            own, started = found.setdefault(name, Measured()), time.process_time()
            answers = NearestConcept(Vocabulary(kept), embed, least=-1.0).resolve(n for n, _ in hidden)
            own.synonyms += [(key, answers[synonym]) for synonym, key in hidden]
            own.seconds += time.process_time() - started
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backbone", type=Path)
    parser.add_argument("--strangers", type=int, default=1000)
    given = parser.parse_args()
    concepts = read_obo(given.folder / "symp.obo")
    with open(given.folder / "doid_hierarchy.tsv", encoding="utf-8", newline="") as file:
        labels = [line["label"] for line in csv.DictReader(file, delimiter="\t")]
    known = Vocabulary(concepts)
    strangers = [label for label in labels if known.lookup(label) is None]
    strangers = random.Random(0).sample(strangers, min(given.strangers, len(strangers)))
    models = {"embedded notes decoder": PlainText(load_backbone(None, embedded="notes_decoder"))}
    if given.backbone:
        models[given.backbone.name] = PlainText(load_backbone(given.backbone))
    found = measured(concepts, strangers, models)
    first = next(iter(found.values()))
    print(
        f"{len(concepts)} concepts, {len(first.synonyms)} synonyms held out, {len(first.slips)} misspelt, "
        f"{len(strangers)} strangers\n"
    )
    heads = ("embedder", "least", "right", "wrong", "misspelt right", "misspelt wrong", "strange")
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name, own in found.items():
        for least in LEAST:
            print(row(name, least, own))
    print("\nProcessor seconds: " + ", ".join(f"{name} {own.seconds:.1f}" for name, own in found.items()))


if __name__ == "__main__":
    main()
