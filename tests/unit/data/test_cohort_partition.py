# SPDX-License-Identifier: Apache-2.0
"""Partitions keep patients whole; uneven ones are uneven; what is written can be read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cohort_folders as folders
import numpy as np
import pytest
import visit_folders
import yaml

from command_line import medflare
from medflare.core.conditions import CONDITIONS
from medflare.core.errors import ConfigError
from medflare.data.heterogeneity import heterogeneity, jensen_shannon
from medflare.data.load import load_cohort
from medflare.data.partition.studies import (
    STUDY_PARTITIONS,
    PartitionPlan,
    partition,
    site_scanners,
    write_partition,
)
from medflare.data.records import Patient, Study
from medflare.data.settings.site import load_site_file
from medflare.data.visits.longitudinal import group_patients
from site_builders import read_cohort

SITES = ("site-1", "site-2", "site-3")


def pool(patients: int = 150) -> list[Study]:
    """Studies with one or two visits a patient and one of five main conditions each."""
    rng = np.random.default_rng(0)
    studies = []
    for patient in range(patients):
        case = int(rng.integers(5))
        for visit in range(1 + patient % 2):
            codes = [0] * 14
            codes[case] = 1
            codes[5] = int(rng.integers(3))
            report = f"{CONDITIONS[case]} is seen word{case}."
            studies.append(
                Study(
                    study_id=f"{patient}-{visit}",
                    patient_id=f"p{patient}",
                    images=(Path(f"{patient}.png"),),
                    report=report,
                    codes=tuple(codes),
                )
            )
    return studies


@pytest.mark.parametrize("method", STUDY_PARTITIONS)
def test_no_patient_is_at_two_sites_and_none_is_lost(method: str) -> None:
    studies = pool()
    dealt = partition(studies, PartitionPlan(sites=SITES, method=method))
    owners = [{study.patient_id for study in own} for own in dealt.values()]
    assert all(owners)
    assert sum(len(own) for own in owners) == len(set().union(*owners)) == 150
    assert sum(len(own) for own in dealt.values()) == len(studies)
    assert dealt == partition(studies, PartitionPlan(sites=SITES, method=method))


def divergence(plan: PartitionPlan) -> float:
    return float(heterogeneity(partition(pool(), plan))["mean_divergence"])


def test_small_alpha_diverges_more_than_large() -> None:
    small = [divergence(PartitionPlan(sites=SITES, method="dirichlet", alpha=0.1, seed=s)) for s in range(5)]
    large = [divergence(PartitionPlan(sites=SITES, method="dirichlet", alpha=100, seed=s)) for s in range(5)]
    assert np.mean(small) > 5 * np.mean(large)


def test_clusters_diverge_more_than_a_stratified_deal() -> None:
    even = divergence(PartitionPlan(sites=SITES))
    assert even < 0.01
    assert divergence(PartitionPlan(sites=SITES, method="report_clusters")) > 5 * even


def test_clusters_and_stratified_deals_are_balanced() -> None:
    for method in ("report_clusters", "random_stratified"):
        dealt = partition(pool(), PartitionPlan(sites=SITES, method=method))
        assert {len({study.patient_id for study in own}) for own in dealt.values()} == {50}


def test_dirichlet_over_a_named_label_moves_that_label() -> None:
    plan = PartitionPlan(sites=SITES, method="dirichlet", alpha=0.1, label="cardiomegaly", seed=1)
    shares = [site["cardiomegaly"] for site in heterogeneity(partition(pool(), plan))["labels"].values()]
    assert max(shares) - min(shares) > 0.15


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (PartitionPlan(sites=SITES, method="alphabet"), "random_stratified, report_clusters, dirichlet"),
        (PartitionPlan(sites=SITES, label="flu"), "cardiomegaly"),
        (PartitionPlan(sites=SITES, alpha=0), "above 0"),
        (PartitionPlan(sites=tuple(map(str, range(200)))), "150 patients cannot be dealt to 200 sites"),
    ],
)
def test_impossible_plans_say_what_is_possible(plan: PartitionPlan, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partition(pool(), plan)


def test_jensen_shannon_is_zero_for_equal_and_one_for_disjoint() -> None:
    p, q = np.array([1.0, 0, 0, 0]), np.array([0, 0.5, 0.5, 0])
    assert jensen_shannon(p, p) == 0
    assert jensen_shannon(p, q) == pytest.approx(1)
    assert jensen_shannon(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == pytest.approx(0.311278, abs=1e-6)


def test_heterogeneity_counts_shared_words() -> None:
    def study(site: str, text: str) -> Study:
        return Study(study_id=site, patient_id=site, images=(), report=text, codes=(0,) * 14)

    rows = heterogeneity({"a": [study("a", "heart is big")], "b": [study("b", "heart is small now")]})["rows"]
    assert [row["overlap"] for row in rows] == [0.667, 0.5]
    assert [row["words"] for row in rows] == [3.0, 4.0]


def test_scanners_are_fixed_per_site_and_in_range() -> None:
    scanners = site_scanners(SITES, seed=4)
    assert scanners == site_scanners(SITES, seed=4)
    assert len({scanner.contrast for scanner in scanners.values()}) == 3
    for scanner in scanners.values():
        assert scanner.blur in (0, 0.5, 1)
        assert min(scanner.contrast, scanner.brightness) >= 0.8
        assert max(scanner.contrast, scanner.brightness) <= 1.2


def test_a_written_partition_is_read_as_it_was_dealt(tmp_path: Path) -> None:
    root = folders.manifest(tmp_path / "pool")
    pooled = read_cohort("manifest", root)
    plan = PartitionPlan(sites=("north", "south"), seed=2)
    path = write_partition(pooled.studies, plan, tmp_path / "dealt")
    dealt = partition(pooled.studies, plan)
    sites = load_site_file(path)
    assert set(sites) == {"north", "south"}
    for name, site in sites.items():
        read = load_cohort(site)
        assert [(s.study_id, s.split, s.codes, s.report, s.age) for s in read.studies] == [
            (s.study_id, s.split, s.codes, s.report, s.age) for s in dealt[name]
        ]
        assert site.cohort[0].scanner == site_scanners(plan.sites, 2)[name]


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({}, ()),
        ({"order": "visit", "most": 2}, visit_folders.NUMBERS),
        ({"same_day": "keep", "covariates": ("weight",)}, ()),
    ],
)
def test_patients_with_visits_stay_what_they_are_for_a_method_of_visits(
    settings: dict[str, Any], numbers: tuple[int, ...], tmp_path: Path
) -> None:
    """Numbers, holes, days and covariates of the pool, in one command."""
    changes = {index: {"weight": 60 + index, **({"day": 30} if index == 2 else {})} for index in range(6)}
    if "same_day" not in settings:
        changes = {}
    rows = visit_folders.visit_rows(changes, numbers)
    config = visit_folders.site(tmp_path / "pool", rows, **settings)
    pooled = {patient.patient_id: patient for patient in group_patients(load_cohort(config).studies)}
    cohort = config.cohort[0].model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump({"name": "pool", "cohort": cohort}))
    done = medflare("cohort", "partition", tmp_path / "pool.yaml", tmp_path / "out", "--sites", 2, "--json")
    assert done.exit_code == 0, done.output
    dealt = [
        patient
        for site in load_site_file(tmp_path / "out").values()
        for patient in group_patients(load_cohort(site).studies)
    ]
    assert {patient.patient_id: visits_of(patient) for patient in dealt} == {
        name: visits_of(patient) for name, patient in pooled.items()
    }


def visits_of(patient: Patient) -> list[tuple[object, ...]]:
    return [
        (visit.number, visit.study.study_id, visit.gap, visit.since, visit.study.extra.get("weight"))
        for visit in patient.visits
    ]


DIFFERENT = {"visits": {"visits": {"most": 2}}, "text_rules": {"text_rules": "r2gen"}}


@pytest.mark.parametrize("setting", DIFFERENT)
def test_cohorts_that_are_read_in_different_ways_are_not_dealt_together(setting: str, tmp_path: Path) -> None:
    parts = []
    for name in ("a", "b"):
        config = visit_folders.site(tmp_path / name)
        parts.append(config.cohort[0].model_dump(mode="json", exclude_defaults=True))
    parts[1] |= DIFFERENT[setting]
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump({"name": "pool", "cohort": parts}))
    done = medflare("cohort", "partition", tmp_path / "pool.yaml", tmp_path / "out", "--sites", 2)
    assert (done.exit_code, f"have different '{setting}'" in done.stderr) == (2, True)


def test_a_second_reading_is_by_the_rules_and_the_scanner_of_the_first(tmp_path: Path) -> None:
    root = folders.manifest(tmp_path / "pool")
    cohort = {"format": "manifest", "root": str(root), "text_rules": "r2gen", "scanner": {"blur": 2.0}}
    (tmp_path / "pool.yaml").write_text(yaml.safe_dump({"name": "pool", "cohort": cohort, "threads": 2}))
    (pool,) = load_site_file(tmp_path / "pool.yaml").values()
    words = {study.study_id: study.report.split() for study in load_cohort(pool).studies}
    asked = (tmp_path / "pool.yaml", tmp_path / "out", "--sites", 2, "--no-scanners")
    assert medflare("cohort", "partition", *asked).exit_code == 0
    sites = list(load_site_file(tmp_path / "out").values())
    assert {s.study_id: s.report.split() for site in sites for s in load_cohort(site).studies} == words
    assert all(text[-1] == "." and "".join(text).islower() for text in words.values())
    assert [site.cohort[0].scanner for site in sites] == [pool.cohort[0].scanner] * 2
    assert [site.threads for site in sites] == [2, 2]
