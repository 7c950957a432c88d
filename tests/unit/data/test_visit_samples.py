# SPDX-License-Identifier: Apache-2.0
"""What a learner opens: visits by number, with pictures, reports before and gaps."""

from __future__ import annotations

from pathlib import Path

import cohort_folders as folders
import pytest
import torch
from visit_folders import site, visit_rows

from medflare.core.errors import ConfigError
from medflare.data.cohort_summary import summarise
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.data.visit_samples import open_visits


def test_batches_by_visit_number(tmp_path: Path) -> None:
    samples = open_visits(site(tmp_path), 16, tmp_path / "cache")
    assert samples.counts("train") == [2, 2, 1]
    assert samples.counts("test") == [1, 0, 0]
    assert samples.counts("train", 5) == [2, 2, 1, 0, 0]
    assert samples.rows("test", 2) == [] == samples.rows("train", 4)
    rows = samples.rows("train", 2)
    images, there = samples.images(rows)
    assert images.shape == (2, 1, 1, 16, 16)
    assert there.all()
    assert samples.reports(rows) == [folders.REPORTS[1], folders.REPORTS[4]]
    assert samples.priors(rows) == [folders.REPORTS[0], folders.REPORTS[3]]
    assert samples.gaps(rows).tolist() == [30, 365]
    assert samples.gaps(samples.rows("test")).tolist() == [0]
    assert samples.days("train") == [[0, 30, 90], [0, 365]]
    assert [samples.patients[samples.owners[row]].patient_id for row in rows] == ["A", "B"]
    assert samples.codes.shape == (6, 14)


def test_a_visit_with_fewer_images_is_padded_and_says_so(tmp_path: Path) -> None:
    two = {"image": ["images/s1.png", "images/s2.png"]}
    samples = open_visits(site(tmp_path, visit_rows({1: two})), 16)
    images, there = samples.images(samples.rows("train", 2))
    assert there.tolist() == [[True, True], [True, False]]
    assert images[1, 1].abs().sum() == 0
    assert torch.equal(images[0, 1], samples.images(samples.rows("train", 3))[0][0, 0])


def test_an_image_that_cannot_be_decoded_costs_the_visit_and_not_the_numbers(tmp_path: Path) -> None:
    config = site(tmp_path)
    (tmp_path / "images" / "s1.png").write_bytes(b"broken")
    samples = open_visits(config, 16)
    assert samples.counts("train") == [2, 1, 1]
    assert samples.skipped() == {"corrupt image": 1}
    assert samples.priors(samples.rows("train", 3)) == [folders.REPORTS[0]]


def test_a_site_where_everyone_came_once_has_nothing_of_visit_two(tmp_path: Path) -> None:
    rows = [row for row in visit_rows() if row["day"] == 0]
    samples = open_visits(site(tmp_path, rows), 16)
    assert (samples.last, samples.counts("train", 3)) == (1, [2, 0, 0])
    assert samples.images(samples.rows("train", 2))[0].shape == (0, 0, 1, 16, 16)
    assert summarise(samples.cohort)["visits"]["T"] == 1


def test_a_cohort_without_visits_is_refused_with_the_key_to_add(tmp_path: Path) -> None:
    folders.manifest(tmp_path)
    plain = SiteConfig(name="x", cohort=CohortConfig(format="manifest", root=tmp_path))
    with pytest.raises(ConfigError, match=r"add 'visits: \{\}' to the cohort"):
        open_visits(plain, 16)


def test_two_folders_pool_their_patients_apart(tmp_path: Path) -> None:
    parts = [site(tmp_path / name).cohort[0] for name in ("one", "two")]
    samples = open_visits(SiteConfig(name="both", cohort=tuple(parts)), 16)
    assert len(samples.patients) == 6
    assert samples.counts("train") == [4, 4, 2]
