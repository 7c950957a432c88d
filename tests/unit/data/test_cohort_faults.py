# SPDX-License-Identifier: Apache-2.0
"""One bad study never stops a site; too many do, with one clear error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cohort_folders as folders
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.core.errors import DataError
from medflare.data.cohort_summary import summarise
from medflare.data.images import DecodeError, read_image
from medflare.data.load import load_cohort
from medflare.data.samples import open_samples
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig

Rows = list[dict[str, Any]]


def missing_image(root: Path, rows: Rows) -> None:
    rows[0]["image"] = ["images/absent.png"]


def no_image(root: Path, rows: Rows) -> None:
    rows[0]["image"] = []


def corrupt_image(root: Path, rows: Rows) -> None:
    path = root / "images" / "s0.png"
    path.write_bytes(path.read_bytes()[:60])


def not_an_image(root: Path, rows: Rows) -> None:
    (root / "images" / "s0.dcm").write_text("hello")
    rows[0]["image"] = ["images/s0.dcm"]


def constant_image(root: Path, rows: Rows) -> None:
    folders.write_png(root / "images" / "s0.png", np.zeros((20, 20), np.uint8))


def nan_pixels(root: Path, rows: Rows) -> None:
    image = folders.corner_image().astype(np.float32)
    image[30, 30] = np.nan
    folders.write_nifti(root / "images" / "s0.nii.gz", image, None)
    rows[0]["image"] = ["images/s0.nii.gz"]


def a_volume(root: Path, rows: Rows) -> None:
    folders.write_nifti(root / "images" / "s0.nii", np.random.rand(8, 8, 5).astype(np.float32), None)
    rows[0]["image"] = ["images/s0.nii"]


def empty_report(root: Path, rows: Rows) -> None:
    rows[0]["report"] = " \n "


def null_report(root: Path, rows: Rows) -> None:
    rows[0]["report"] = None


def duplicated(root: Path, rows: Rows) -> None:
    rows[5]["study_id"] = rows[4]["study_id"]


def unknown_split(root: Path, rows: Rows) -> None:
    rows[0]["split"] = "holdout"


def no_patient(root: Path, rows: Rows) -> None:
    rows[0]["patient_id"] = ""


def label_missing(root: Path, rows: Rows) -> None:
    for row in rows[1:]:
        row["labels"] = [0] * 14


def label_of_13(root: Path, rows: Rows) -> None:
    for row in rows:
        row["labels"] = [0] * 14
    rows[0]["labels"] = [0] * 13


FAULTS: list[tuple[Callable[[Path, Rows], None], str]] = [
    (missing_image, "missing image"),
    (no_image, "missing image"),
    (corrupt_image, "corrupt image"),
    (not_an_image, "corrupt image"),
    (constant_image, "constant image"),
    (nan_pixels, "NaN pixels"),
    (a_volume, "not a radiograph"),
    (empty_report, "empty report"),
    (null_report, "empty report"),
    (duplicated, "duplicated study"),
    (unknown_split, "unknown split"),
    (no_patient, "missing patient id"),
    (label_missing, "missing labels"),
    (label_of_13, "missing labels"),
]


def site(root: Path, break_it: Callable[[Path, Rows], None], **settings: Any) -> SiteConfig:
    rows = folders.manifest_rows()
    folders.manifest(root, rows)
    break_it(root, rows)
    folders.write_jsonl(root / "manifest.jsonl", rows)
    return SiteConfig(cohort=CohortConfig(format="manifest", root=root, **settings))


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_fault_is_counted_with_its_reason_and_the_rest_goes_on(
    fault: Any, reason: str, tmp_path: Path
) -> None:
    samples = open_samples(site(tmp_path, fault, max_skipped=0.2), 16)
    assert samples.skipped() == {reason: 1}
    assert len(samples) == 5 == len(samples.cohort.studies) == len(samples.codes)
    assert samples.images(range(5)).isfinite().all()
    assert summarise(samples.cohort)["skipped"][reason]["count"] == 1


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_over_the_limit_is_one_clear_error(fault: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_samples(site(tmp_path, fault), 16)
    message = str(caught.value)
    assert f"1 of 6 records cannot be used, allowed are 5.0% ({reason} 1)" in message
    assert "max_skipped" in message


def test_unreadable_lines_count_as_records(tmp_path: Path) -> None:
    config = site(tmp_path, lambda root, rows: None, max_skipped=0.3)
    with (tmp_path / "manifest.jsonl").open("a") as file:
        file.write("{broken\n[1]\n")
    cohort = load_cohort(config)
    assert (cohort.records, len(cohort.skipped), cohort.skipped[0].record) == (8, 2, "manifest.jsonl:7")


def test_a_study_with_one_bad_image_keeps_the_good_one(tmp_path: Path) -> None:
    def second_is_bad(root: Path, rows: Rows) -> None:
        (root / "images" / "bad.png").write_bytes(b"\x89PNG")
        rows[0]["image"].append("images/bad.png")

    samples = open_samples(site(tmp_path, second_is_bad, max_skipped=0.2), 16)
    assert samples.skipped() == {"corrupt image": 1}
    assert (len(samples), len(samples.studies[0].images)) == (6, 1)


def test_nothing_usable_is_an_error_even_if_all_may_be_skipped(tmp_path: Path) -> None:
    def all_empty(root: Path, rows: Rows) -> None:
        for row in rows:
            row["report"] = ""

    with pytest.raises(DataError, match=r"no usable record .*empty report 6"):
        load_cohort(site(tmp_path, all_empty, max_skipped=1.0))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
fields = st.sampled_from(["study_id", "patient_id", "image", "report", "split", "age", "sex", "day", "view"])


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(fields, json_values, min_size=1))
def test_whatever_stands_in_one_row_the_others_are_read(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any]
) -> None:
    root = tmp_path_factory.getbasetemp() / "fuzzed"
    if not root.exists():
        folders.manifest(root)
    rows = folders.manifest_rows()
    rows[0].update(change)
    folders.write_jsonl(root / "manifest.jsonl", rows)
    cohort = load_cohort(SiteConfig(cohort=CohortConfig(format="manifest", root=root, max_skipped=0.2)))
    assert {f"s{index}" for index in range(1, 6)} <= {study.study_id for study in cohort.studies}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".dcm", ".nii.gz"])
def test_a_damaged_file_is_a_decode_error_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"whole{suffix}"
    if suffix == ".dcm":
        folders.write_dicom(path, folders.corner_image())
    elif suffix == ".nii.gz":
        folders.write_nifti(path, folders.corner_image(), None)
    else:
        folders.write_png(path, folders.corner_image())
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for trial in range(40):
        damaged = bytearray(whole if trial % 2 else whole[: rng.integers(len(whole))])
        for place in rng.integers(len(damaged), size=8) if trial % 2 else ():
            damaged[place] = rng.integers(256)
        path.write_bytes(bytes(damaged))
        with suppress(DecodeError):
            assert np.isfinite(read_image(path)).all()
