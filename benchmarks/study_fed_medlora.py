# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA, Fed-MedLoRA+ and their baselines on synthetic notes, over seeds: `make study-fed-medlora`.

A seed decides the training notes of every site, the adapter's first values and the data order; test notes are
the same for all seeds. Every unit (method, seed) trains through `learners.loop.federate` with the settings of
the committed job (the FLARE run equals it, see tests/federation) and writes its predictions; the tables are
made from these alone (study_extraction_tables.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from extraction_studies import Budget, Codec, Method, grouped, train_and_test, zero_shot
from medflare.data.records import Note
from medflare.data.settings.cohort import CohortConfig, SplitConfig
from medflare.data.settings.site import SiteConfig
from study_extraction_tables import write_tables
from study_units import complete, run_units, timed, unit_folder

SITES, UNSEEN = ("site-1", "site-2", "site-3"), "site-4"
CORRUPTED, NER_ONLY = "site-3", "site-2"
TEST_SEED = 777
SHARE = 0.7
"""Of the corrupted site's entities whose labels are wrong."""


def plus(temperature: float) -> dict[str, Any]:
    return {"rule": "influence", "rule_settings": {"mode": "server", "temperature": temperature}}


METHODS: dict[str, Method] = {
    "fed_medlora": Method("Fed-MedLoRA"),
    "single": Method("single site", mode="single"),
    "centralised": Method("centralised", mode="pooled"),
    "centralised_wide": Method(
        "centralised, batch of all sites", mode="pooled", settings={"optimiser": {"batch": 24, "lr": 2e-3}}
    ),
    "plus": Method("Fed-MedLoRA+ (κ = 0.1)", **plus(0.1)),
    "corrupted": Method("Fed-MedLoRA, one site corrupted", condition="corrupted"),
    "corrupted_plus": Method(
        "Fed-MedLoRA+ (κ = 0.1), one site corrupted", condition="corrupted", **plus(0.1)
    ),
    "corrupted_plus_1": Method(
        "Fed-MedLoRA+ (κ = 1), one site corrupted", condition="corrupted", **plus(1.0)
    ),
    "uneven": Method("Fed-MedLoRA, one site NER only", condition="uneven"),
    "int8": Method("Fed-MedLoRA, int8 both ways", codec=Codec("int8", "int8")),
    "int4": Method("Fed-MedLoRA, int4 up, int8 down", codec=Codec("int4", "int8")),
    "freeze_a": Method("Fed-MedLoRA, A frozen", rule="freeze_a", settings={"sharing": "freeze_a"}),
    "stack": Method("Fed-MedLoRA, stacked", rule="lora_stack", settings={"sharing": "stack"}),
    "product_svd": Method("Fed-MedLoRA, product SVD", rule="lora_product_svd"),
    "fedsa": Method("FedSA-LoRA, own B", settings={"sharing": "fedsa"}),
    "encoder": Method("encoder, federated", learner="token_classification"),
    "encoder_pooled": Method("encoder, centralised", mode="pooled", learner="token_classification"),
    "zero_shot": Method("zero-shot", mode="none"),
}


def write_cohorts(out: Path, seed: int, train: int, test: int) -> None:
    """Training notes of a seed, and test notes where they are missing."""
    from medflare.synthetic.notes import NOTE_HOSPITALS, UNSEEN_NOTES, write_notes_hospital
    from medflare.synthetic.notes.files import write_validation_notes

    tests, trains = out / "test", out / f"train-{seed}"
    for house in (*NOTE_HOSPITALS, UNSEEN_NOTES):
        if not (tests / house.name).is_dir():
            write_notes_hospital(house.with_seed(TEST_SEED), tests / house.name, test, "jsonl")
    if not trains.is_dir():
        for house in NOTE_HOSPITALS:
            write_notes_hospital(house.with_seed(seed), trains / house.name, train, "jsonl")
        bad = NOTE_HOSPITALS[SITES.index(CORRUPTED)].with_seed(seed)
        write_notes_hospital(bad, trains / f"{CORRUPTED}-corrupted", train, "jsonl", corrupted=SHARE)
    if not (out / "validation").is_dir():
        write_validation_notes(out / "validation")


def cohort(folder: Path, split: str, **more: Any) -> CohortConfig:
    """All notes of a folder in one split."""
    shares = SplitConfig.model_validate({name: float(name == split) for name in ("train", "val", "test")})
    return CohortConfig(format="notes_jsonl", root=folder, split=shares, **more)


def site(out: Path, name: str, seed: int, condition: str) -> SiteConfig:
    """A training site of a seed under a condition, with its test notes."""
    bad = condition == "corrupted" and name == CORRUPTED
    tasks = {"tasks": ("ner",)} if condition == "uneven" and name == NER_ONLY else {}
    train = cohort(out / f"train-{seed}" / (f"{name}-corrupted" if bad else name), "train", **tasks)
    return SiteConfig(name=name, cohort=(train, cohort(out / "test" / name, "test")))


def test_notes(out: Path) -> dict[str, list[Note]]:
    """Site -> its test notes, the unseen one included."""
    from medflare.data.load import load_cohort

    return {
        name: load_cohort(SiteConfig(name=name, cohort=(cohort(out / "test" / name, "test"),))).notes
        for name in (*SITES, UNSEEN)
    }


def train_unit(name: str, seed: int, out: Path, budget: Budget) -> None:
    """Trains one unit and writes its predictions."""
    method, cohorts = METHODS[name], out / "cohorts"
    folder, tests = unit_folder(out, name, seed), test_notes(cohorts)
    settings = budget.settings(method.learner) | dict(method.settings)
    if method.mode == "none":
        zero_shot(settings, tests, folder)
        return
    sites = {s: site(cohorts, s, seed, method.condition) for s in SITES}
    judge = SiteConfig(name="server", cohort=(cohort(cohorts / "validation", "val"),))
    for owner, members in grouped(method.mode, sites).items():
        place = folder / owner if owner else folder
        train_and_test(method, settings, members, judge, seed, budget, tests, place)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/fed_medlora"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1, help="passes of a site in a round")
    parser.add_argument("--train", type=int, default=20, help="training notes of a site")
    parser.add_argument("--test", type=int, default=12, help="test notes of a site")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--unit", help="method:seed; used by the program itself")
    given = parser.parse_args()
    budget = Budget(given.rounds, given.epochs)
    seeds, methods = given.seeds.split(","), given.methods.split(",")
    if given.unit:
        name, seed = given.unit.split(":")
        folder = unit_folder(given.out, name, seed)
        timed(folder, lambda: train_unit(name, int(seed), given.out, budget), seed=int(seed))
        return
    for seed in seeds:
        write_cohorts(given.out / "cohorts", int(seed), given.train, given.test)
    options = ["--rounds", str(given.rounds), "--epochs", str(given.epochs)]
    run_units(__file__, given.out, [(m, s) for s in seeds for m in methods], options, given.workers)
    done = {m: METHODS[m].title for m in methods if complete(given.out, m, seeds)}
    write_tables(given.out, done, seeds, (*SITES, UNSEEN), unseen=(UNSEEN,))


if __name__ == "__main__":
    main()
