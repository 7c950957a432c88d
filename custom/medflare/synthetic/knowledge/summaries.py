# SPDX-License-Identifier: Apache-2.0
"""Hospitals with texts and their summaries, each in the words of its house: of chests, or of notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError
from medflare.data.grouped_split import split_by_group
from medflare.data.partition.studies import main_classes
from medflare.data.partition.texts import assign_groups_to_sites
from medflare.data.records import Summary
from medflare.data.settings.cohort import SplitConfig
from medflare.synthetic.findings import MILD, MODERATE, SUBTLE, ChestFinding
from medflare.synthetic.knowledge.hospitals import TextsDemo
from medflare.synthetic.knowledge.note_summaries import SPECIALTIES, write_note_pair
from medflare.synthetic.patients import draw_patient
from medflare.synthetic.profiles import HospitalProfile
from medflare.synthetic.styles.house import STYLES, HouseStyle
from medflare.synthetic.styles.layouts import LAYOUTS
from medflare.synthetic.styles.reports import draft_report
from medflare.synthetic.styles.schools import ABNORMAL

POPULATION = 7_000_000  # seeds far from those of hospitals with pictures
SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
STEPS = (SUBTLE, MILD, MODERATE)
"""Extents at which words change."""
WITHOUT_IMPRESSION = {"sections": "organs", "letter": "paragraph"}
"""Layouts that end in an impression, and what stands for them: the source must not hold the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummariesDemo(TextsDemo):
    """Synthetic hospitals with texts and summaries, a patient each.

    Attributes:
        reports: that a hospital trains on, on average; 1 and 2 for each 7 are for validation and test, and
            reports that repeat each other are in one split.
        kind: chests (findings and impressions) or notes (a clinical note and what to know of it).
        partition: as in `TextsDemo`, of patients by their rarest finding or their specialty.
    """

    reports: int = 160
    kind: str = "chests"

    def __post_init__(self) -> None:
        if self.kind not in POPULATIONS:
            raise ConfigError(f"summaries of {self.kind!r}; choose {' or '.join(POPULATIONS)}.")
        TextsDemo.__post_init__(self)  # slots=True rebuilds the class, after which super() fails
        if self.reports < 1:
            raise ConfigError(f"{self.reports} reports of a hospital: expected 1 or more.")

    @property
    def patients(self) -> int:
        """Of all hospitals together."""
        return round(self.hospitals * self.reports / SHARES["train"])


def summary_hospitals(demo: SummariesDemo) -> dict[str, list[Summary]]:
    """Return hospital -> its summaries of all splits; the same for the same settings on every machine.

    Raises:
        ConfigError: as `assign_groups_to_sites`.
    """
    plan = demo.plan
    names = plan.sites
    population = POPULATIONS[demo.kind](demo)
    given = assign_groups_to_sites(population.groups, plan)
    written = []
    for patient, group in population.groups.items():
        source, target = population.write(patient, given[patient])
        name = f"{names[given[patient]]}-{patient}"
        written.append(Summary(summary_id=name, source=source, target=target, patient_id=name, group=group))
    placed, _ = split_by_group(written, False, SplitConfig.model_validate(SHARES | {"seed": demo.seed}))
    dealt: dict[str, list[Summary]] = {name: [] for name in names}
    for patient, summary in zip(population.groups, placed, strict=True):
        dealt[names[given[patient]]].append(summary)
    return dealt


@dataclass(frozen=True, slots=True)
class Population:
    """Patients of all hospitals with their groups, and (patient, hospital) -> source and target."""

    groups: dict[str, str]
    write: Callable[[str, int], tuple[str, str]]


def chest_population(demo: SummariesDemo) -> Population:
    """Return the population of radiographs' findings, by the rarest of them; the impression is the target."""
    hospital = HospitalProfile(name="chests", style=STYLES["prose"], seed=POPULATION + demo.seed)
    patients = [draw_patient(hospital, index) for index in range(demo.patients)]
    findings_of = {f"{patient.index:06d}": patient.visits[0].findings for patient in patients}
    houses = [house_style(number, demo.seed) for number in range(demo.hospitals)]

    def write(patient: str, site: int) -> tuple[str, str]:
        return write_pair(
            findings_of[patient], houses[site], np.random.default_rng([demo.seed, 75, int(patient)])
        )

    return Population(_rarest(findings_of), write)


def note_population(demo: SummariesDemo) -> Population:
    """Return the population of clinical notes, by specialty; problems and drugs are the target."""
    rng = np.random.default_rng([demo.seed, 77])
    drawn = rng.integers(len(SPECIALTIES), size=demo.patients)
    groups = {f"{number:06d}": SPECIALTIES[int(which)] for number, which in enumerate(drawn)}
    return Population(
        groups, lambda patient, site: write_note_pair(int(patient), groups[patient], site, demo.seed)
    )


POPULATIONS: dict[str, Callable[[SummariesDemo], Population]] = {
    "chests": chest_population,
    "notes": note_population,
}


def write_pair(
    findings: Sequence[ChestFinding], style: HouseStyle, rng: np.random.Generator
) -> tuple[str, str]:
    """Return findings as the house dictates them, and its impression: all of them, the gravest first.

    What is equally grave by its words, or only possible, comes in the order of the report.
    """
    draft, _ = draft_report(findings, style, rng)
    graded = [replace(s, weight=float(np.searchsorted(STEPS, s.weight, "right"))) for s in draft.sentences]
    draft = replace(draft, sentences=graded)
    layout = WITHOUT_IMPRESSION.get(style.layout, style.layout)
    return LAYOUTS[layout](replace(draft, normal="")), draft.impression(len(findings))


def house_style(number: int, seed: int) -> HouseStyle:
    """Return a named style, or after the last one a named one with a third of its words borrowed."""
    style = list(STYLES.values())[number % len(STYLES)]
    if number < len(STYLES):
        return style
    rng = np.random.default_rng([seed, 76, number])
    vocabularies = sorted({other.vocabulary for other in STYLES.values()})
    borrowed = {name: str(rng.choice(vocabularies)) for name in ABNORMAL if rng.random() < 1 / 3}
    return replace(style, name=f"{style.name}-{number}", borrowed={**style.borrowed, **borrowed})


def _rarest(findings_of: dict[str, tuple[ChestFinding, ...]]) -> dict[str, str]:
    """Return patient -> the rarest condition that is sure, "no finding" without one."""
    profiles = {}
    for patient, findings in findings_of.items():
        codes = [Code.BLANK] * len(CONDITIONS)
        for finding in findings:
            codes[CONDITIONS.index(finding.condition)] = (
                Code.UNCERTAIN if finding.uncertain else Code.POSITIVE
            )
        profiles[patient] = np.eye(len(Code))[codes].ravel()
    names = [*CONDITIONS, CONDITIONS[-1]]
    return {patient: names[number] for patient, number in main_classes(profiles, None).items()}
