# SPDX-License-Identifier: Apache-2.0
"""Predictability of changes between visits of the synthetic hospitals, and scores of trivial reports.

    PYTHONPATH=custom python benchmarks/longitudinal.py

Prints the three tables of docs/results/longitudinal.md; a minute on one core, no training of report models.
"""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
from sklearn.linear_model import LogisticRegression

from medflare.core.conditions import CONDITIONS
from medflare.evaluation.temporal_coherence import evaluate_coherence
from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.follow_up import follow_up_reports
from medflare.synthetic.profiles import HospitalProfile
from medflare.synthetic.progression import PROGRESSIONS, follow

VISITS, PATIENTS = 5, 600
DEVICES = "support devices"
METRICS = ("change_f1", "change_moved_f1", "change_macro_f1", "change_opposite")


def fates(profile: HospitalProfile) -> tuple[np.ndarray, np.ndarray]:
    """(n, 3) age, sex and visit number, and what became of each finding but devices."""
    rows, changes = [], []
    for course in follow(profile, PROGRESSIONS[profile.name], PATIENTS, VISITS):
        man = float(course.patient.sex == "M")
        for number, visit in zip(course.numbers, course.patient.visits, strict=True):
            found = [f.change for f in visit.findings if f.condition != DEVICES and number > 1]
            rows += [((visit.age - 60) / 20, man, number - 2.0)] * len(found)
            changes += found
    return np.array(rows), np.array(changes)


def known() -> None:
    """Accuracy on other patients (seed 1) of guesses learnt on seed 0."""
    print("| hospital | n | most frequent change | visit number | age and sex | all three |")
    print("|---|---:|---:|---:|---:|---:|")
    for profile in DEMO_HOSPITALS:
        (x, y), (held, truth) = fates(profile), fates(profile.with_seed(1))
        names, counts = np.unique(y, return_counts=True)
        scores = [float((truth == names[counts.argmax()]).mean())]
        for columns in ([2], [0, 1], [0, 1, 2]):
            model = LogisticRegression(max_iter=500).fit(x[:, columns], y)
            scores.append(model.score(held[:, columns], truth))
        print(f"| {profile.name} | {len(truth)} | " + " | ".join(f"{100 * s:.1f} %" for s in scores) + " |")


def seen(profile: HospitalProfile) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Facts of the patient, facts of the picture, and the change, of each finding but devices that it shows.

    Returns:
        (n, 3) as in `fates`; (n, 2 C + 3) each condition and its extent, how many findings there are, their
        extents in all, the square of this one's; (n,) changes.
    """
    names = [name for name in CONDITIONS if name not in ("no finding", DEVICES)]
    who, shown, changes = [], [], []
    for course in follow(profile, PROGRESSIONS[profile.name], PATIENTS, VISITS):
        man = float(course.patient.sex == "M")
        for number, visit in zip(course.numbers, course.patient.visits, strict=True):
            there = [f for f in visit.findings if f.condition != DEVICES and f.change != "resolved"]
            for finding in there if number > 1 else []:
                condition = np.eye(len(names))[names.index(finding.condition)]
                extents = [len(there), sum(f.extent for f in there), finding.extent**2]
                who.append(((visit.age - 60) / 20, man, number - 2.0))
                shown.append(np.concatenate([condition, condition * finding.extent, extents]))
                changes.append(finding.change)
    return np.array(who), np.array(shown), np.array(changes)


def read_from_the_picture() -> None:
    """The same accuracy for the findings that a picture shows, by who the patient is and by the picture."""
    print("\n| hospital | n | most frequent change | age, sex, visit | the picture, read perfectly | both |")
    print("|---|---:|---:|---:|---:|---:|")
    for profile in DEMO_HOSPITALS:
        (who, shown, y), (held_who, held_shown, truth) = seen(profile), seen(profile.with_seed(1))
        names, counts = np.unique(y, return_counts=True)
        scores = [float((truth == names[counts.argmax()]).mean())]
        for x, held in (
            (who, held_who),
            (shown, held_shown),
            (np.hstack([who, shown]), np.hstack([held_who, held_shown])),
        ):
            scores.append(LogisticRegression(max_iter=5000).fit(x, y).score(held, truth))
        print(f"| {profile.name} | {len(truth)} | " + " | ".join(f"{100 * s:.1f} %" for s in scores) + " |")


def trivial() -> None:
    """Reports that look at no picture, against the references of 100 patients a hospital."""
    pairs = [
        (patient, before.study, now.study)
        for profile in DEMO_HOSPITALS
        for patient, own in groupby(
            follow_up_reports(profile, 100, VISITS), key=lambda visit: visit.study.patient_id
        )
        for before, now in pairwise(own)
    ]
    references = [now.report for _, _, now in pairs]
    moved = np.random.default_rng(0).permutation(len(pairs))
    written = {
        "the reference itself": references,
        "the report of the visit before": [before.report for _, before, _ in pairs],
        "every finding, called unchanged": [
            " ".join(f"Unchanged {f.condition}." for f in now.findings) for _, _, now in pairs
        ],
        "a report drawn at random": [references[i] for i in moved],
    }
    print(f"\n| report, {len(pairs)} visits | " + " | ".join(METRICS) + " |")
    print("|---|" + "---|" * len(METRICS))
    for name, texts in written.items():
        found = evaluate_coherence(
            references,
            texts,
            before=[before.codes for _, before, _ in pairs],
            now=[now.codes for _, _, now in pairs],
            groups=[patient for patient, _, _ in pairs],
        )
        cells = [f"{found[m].value:.3f} ({found[m].low:.3f} to {found[m].high:.3f})" for m in METRICS]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    known()
    read_from_the_picture()
    trivial()
