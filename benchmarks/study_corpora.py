# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA on four real corpora as four hospitals: `make study-corpora` (needs MEDFLARE_DATA).

MTSamples in BRAT (the paper's own training cohort), MACCROBAT, Chia and PHEE, each with its own genre, types
and label map. MTSamples is split by document here; of the others the training part trains and the development
part tests. Only what a corpus annotates is scored.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from extraction_studies import Budget, Method, grouped, train_and_test, zero_shot
from medflare.data.load import load_cohort
from medflare.data.notes.note_writers import notes_row
from medflare.data.settings.cohort import CohortConfig, SplitConfig
from medflare.data.settings.label_maps import mapping_of, targets
from medflare.data.settings.site import SiteConfig
from study_extraction_tables import write_tables
from study_units import complete, run_units, timed, unit_folder

NOTES = {"mtsamples": (10, 8), "maccrobat": (10, 8), "chia": (40, 24), "phee": (160, 100)}
"""Corpus -> most training and test notes: about as many entities each, so that two cores are enough."""

METHODS = {
    "fed_medlora": Method("Fed-MedLoRA"),
    "single": Method("single corpus", mode="single"),
    "centralised": Method("centralised", mode="pooled"),
    "encoder": Method("encoder, federated", learner="token_classification"),
    "encoder_pooled": Method("encoder, centralised", mode="pooled", learner="token_classification"),
    "zero_shot": Method("zero-shot", mode="none"),
}


def corpus(name: str) -> CohortConfig:
    """A corpus as published, with its label map."""
    root = Path(os.environ["MEDFLARE_DATA"]) / "ie"
    if name == "mtsamples":
        shares = SplitConfig(train=0.75, val=0.25, test=0.0, seed=0)
        return CohortConfig(
            format="brat", root=root / "mtsamples_brat" / "train", split=shares, label_map=name
        )
    return CohortConfig(format="notes_jsonl", root=root / name, label_map=name)


def write_parts(out: Path) -> None:
    """A drawn sample (NOTES) of each corpus in the inventory's types: `<corpus>/{train,test}`.

    What belongs to one trial or one abstract has one patient, so that it is resampled together.
    """
    for name, most in NOTES.items():
        found = load_cohort(SiteConfig(name=name, cohort=(corpus(name),))).notes
        for part, split, count in zip(("train", "test"), ("train", "val"), most, strict=True):
            present = sorted((n for n in found if n.split == split), key=lambda n: n.note_id)
            drawn = np.random.default_rng(0).permutation(len(present))[:count]
            chosen = [replace(present[i], patient_id=owner(name, present[i].note_id)) for i in drawn]
            folder = out / name / part
            folder.mkdir(parents=True, exist_ok=True)
            rows = "".join(f"{json.dumps(notes_row(note) | {'split': part})}\n" for note in chosen)
            (folder / "notes.jsonl").write_text(rows, encoding="utf-8")


def owner(corpus: str, note_id: str) -> str:
    """The trial of a Chia note, the abstract of a PHEE sentence, otherwise the document."""
    return note_id.rsplit("_", 1)[0] if corpus in ("chia", "phee") else note_id


def part(out: Path, name: str, part: str) -> CohortConfig:
    """A part that `write_parts` wrote; only what the corpus annotates is scored."""
    annotated = targets(mapping_of(name))
    return CohortConfig(format="notes_jsonl", root=out / name / part, annotated=annotated)


def train_unit(name: str, seed: int, out: Path, budget: Budget) -> None:
    """Trains one unit and writes its predictions."""
    method, folder, cohorts = METHODS[name], unit_folder(out, name, seed), out / "cohorts"
    settings = budget.settings(method.learner) | dict(method.settings)
    tests = {c: load_cohort(SiteConfig(name=c, cohort=(part(cohorts, c, "test"),))).notes for c in NOTES}
    if method.mode == "none":
        zero_shot(settings, tests, folder)
        return
    sites = {c: SiteConfig(name=c, cohort=(part(cohorts, c, "train"),)) for c in NOTES}
    for owner, members in grouped(method.mode, sites).items():
        place = folder / owner if owner else folder
        train_and_test(method, settings, members, None, seed, budget, tests, place)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/corpora"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1, help="passes of a site in a round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--unit", help="method:seed; used by the program itself")
    given = parser.parse_args()
    if "MEDFLARE_DATA" not in os.environ:
        parser.error(
            "set MEDFLARE_DATA to the folder that holds ie/mtsamples_brat, ie/maccrobat, ie/chia, ie/phee"
        )
    budget = Budget(given.rounds, given.epochs)
    seeds, methods = given.seeds.split(","), given.methods.split(",")
    if given.unit:
        name, seed = given.unit.split(":")
        folder = unit_folder(given.out, name, seed)
        timed(folder, lambda: train_unit(name, int(seed), given.out, budget), seed=int(seed))
        return
    if not (given.out / "cohorts").is_dir():
        write_parts(given.out / "cohorts")
    options = ["--rounds", str(given.rounds), "--epochs", str(given.epochs)]
    run_units(__file__, given.out, [(m, s) for s in seeds for m in methods], options, given.workers)
    done = {m: METHODS[m].title for m in methods if complete(given.out, m, seeds)}
    write_tables(given.out, done, seeds, tuple(NOTES), unseen=())


if __name__ == "__main__":
    main()
