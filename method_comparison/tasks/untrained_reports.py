# SPDX-License-Identifier: Apache-2.0
"""Rows that train nothing and look at no image: reports made of what is known of each test study."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, TypeGuard, get_args

import numpy as np

from medflare.core.errors import ConfigError
from medflare.core.json_lines import write_lines
from medflare.data.load import load_cohort
from medflare.data.records import Study
from medflare.data.settings.site import SiteConfig
from medflare.data.text import clean_report
from medflare.evaluation.predictions import Prediction
from medflare.labelling.labels import label_report
from medflare.synthetic.findings import ChestFinding
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL
from medflare.synthetic.styles.house import HouseStyle
from medflare.synthetic.styles.reports import write_report
from medflare.tasks.commonest import commonest_text

FromReports = Literal["commonest", "conditions"]
"""The commonest training report; the commonest one with exactly the conditions of the test study."""
FromFindings = Literal["known_conditions", "known_places", "known_findings"]
"""A report in the house's usual words of the study's conditions; with their sides and zones; of all that its
image shows. What is not known is as in most training studies."""
Untrained = Literal[FromReports, FromFindings]
Write = Callable[[Study], str]


def trains_nothing(mode: str) -> TypeGuard[Untrained]:
    """Return whether a row of this mode is of this module."""
    return mode in get_args(Untrained)


def write_untrained(site: SiteConfig, mode: Untrained, path: Path, most: int, cohorts: Path) -> None:
    """Write the drafts of a site's test studies as predictions.

    Args:
        most: studies of a hospital that took no part, all of whose studies are tests.
        cohorts: folder of the synthetic hospitals, whose findings are read for the modes of FromFindings.

    Raises:
        ConfigError: a mode of FromFindings at hospitals that are not synthetic.
    """
    studies = load_cohort(site).studies
    unseen = site.name == UNSEEN_HOSPITAL.name
    training = [study for study in studies if unseen or study.split == "train"]
    tested = studies[:most] if unseen else [study for study in studies if study.split == "test"]
    if mode in get_args(FromFindings):
        draft = usual_words(training, mode, cohorts)
    else:
        draft = training_report(training, mode == "conditions")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, [_prediction(study, site.name, draft(study)) for study in tested])


def training_report(training: Sequence[Study], conditions: bool) -> Write:
    """Return who writes the commonest report of other patients, of the study's own conditions if asked.

    Where no other patient has exactly these conditions, the commonest of all stands in.
    """
    commonest = commonest_text(study.report for study in training)
    alike: dict[tuple[int, ...], list[Study]] = {}
    for study in training:
        alike.setdefault(_codes(study.report), []).append(study)

    def draft(study: Study) -> str:
        others = _others(alike.get(_codes(study.report), ()), study) if conditions else []
        return commonest_text(other.report for other in others) if others else commonest

    return draft


def usual_words(training: Sequence[Study], mode: Untrained, cohorts: Path) -> Write:
    """Return who writes a study's own findings as its house usually words them.

    Raises:
        ConfigError: the studies are of no synthetic hospital.
    """
    if not (findings := read_findings(cohorts)):
        raise ConfigError(
            f"mode {mode} is for synthetic hospitals, whose findings are known; {cohorts} has none."
        )
    styles = {hospital.name: usual_style(hospital.style) for hospital in (*DEMO_HOSPITALS, UNSEEN_HOSPITAL)}

    def draft(study: Study) -> str:
        known = findings[own_id(study)]
        if mode != "known_findings":
            seen = [finding for other in _others(training, study) for finding in findings[own_id(other)]]
            known = [typical(finding, seen, places=mode == "known_places") for finding in known]
        style = styles[own_id(study).rsplit("-p", 1)[0]]
        return clean_report(write_report(known, style, np.random.default_rng(0))[0])

    return draft


def own_id(study: Study) -> str:
    """Return the study's number at the hospital that it was drawn for, without that of a pooled cohort."""
    return study.study_id.rsplit("/", 1)[-1]


def usual_style(style: HouseStyle) -> HouseStyle:
    """Return a house's style without the sentences in which a reporter leaves its habit."""
    return replace(style, variety=0.0)


def typical(finding: ChestFinding, seen: Iterable[ChestFinding], places: bool) -> ChestFinding:
    """Return the finding as most are of its condition and certainty; at its own side and zone if `places`.

    One whose condition nobody else has is returned as it is.
    """
    alike = [f for f in seen if (f.condition, f.uncertain) == (finding.condition, finding.uncertain)]
    here = [f for f in alike if (f.side, f.zone) == (finding.side, finding.zone)] if places else []
    most = Counter((f.side, f.zone, f.severity, f.kind) for f in here or alike).most_common(1)
    if not most:
        return finding
    usual = next(f for f in alike if (f.side, f.zone, f.severity, f.kind) == most[0][0])
    return replace(usual, side=finding.side, zone=finding.zone) if places else usual


def read_findings(cohorts: Path) -> dict[str, list[ChestFinding]]:
    """Return study -> what its image shows, of all synthetic hospitals in a folder."""
    found = {}
    for manifest in sorted(cohorts.glob("*/manifest.jsonl")):
        for line in manifest.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["study_id"]] = [ChestFinding(**finding) for finding in row["findings"]]
    return found


def _others(studies: Iterable[Study], study: Study) -> list[Study]:
    """Return those of other patients: at a hospital that took no part the tested study is among them."""
    return [other for other in studies if other.patient_id != study.patient_id]


def _prediction(study: Study, site: str, draft: str) -> Prediction:
    return Prediction(
        study_id=study.study_id,
        patient_id=study.patient_id,
        site=site,
        adapter="generic",
        reference=study.report,
        generated=draft,
        gold_codes=_codes(study.report),
        predicted_codes=_codes(draft),
    )


@cache
def _codes(report: str) -> tuple[int, ...]:
    return tuple(map(int, label_report(report)))
