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
from medflare.data.samples import open_samples
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from site_builders import read_cohort

Rows = list[dict[str, Any]]


def cut_image(root: Path) -> None:
    path = root / "images" / "s0.png"
    path.write_bytes(path.read_bytes()[:60])


def other_image(root: Path, rows: Rows, name: str, image: np.ndarray | str) -> None:
    """Let the first study have a NIfTI file, or one with these words."""
    path = root / "images" / name
    path.write_text(image) if isinstance(image, str) else folders.write_nifti(path, image, None)
    rows[0]["image"] = [f"images/{name}"]


def with_nan() -> np.ndarray:
    image = folders.corner_image().astype(np.float32)
    image[30, 30] = np.nan
    return image


VOLUME = np.random.default_rng(0).random((8, 8, 5)).astype(np.float32)
BLACK = np.zeros((20, 20), np.uint8)
FAULTS: dict[str, tuple[Callable[[Path, Rows], object], str]] = {
    "missing image": (lambda root, rows: rows[0].update(image=["images/absent.png"]), "missing image"),
    "no image": (lambda root, rows: rows[0].update(image=[]), "missing image"),
    "corrupt image": (lambda root, rows: cut_image(root), "corrupt image"),
    "not an image": (lambda root, rows: other_image(root, rows, "s0.dcm", "hello"), "corrupt image"),
    "constant image": (lambda root, rows: folders.write_png(root / "images/s0.png", BLACK), "constant image"),
    "nan pixels": (lambda root, rows: other_image(root, rows, "s0.nii.gz", with_nan()), "NaN pixels"),
    "a volume": (lambda root, rows: other_image(root, rows, "s0.nii", VOLUME), "not a radiograph"),
    "empty report": (lambda root, rows: rows[0].update(report=" \n "), "empty report"),
    "null report": (lambda root, rows: rows[0].update(report=None), "empty report"),
    "duplicated": (lambda root, rows: rows[5].update(study_id=rows[4]["study_id"]), "duplicated study"),
    "unknown split": (lambda root, rows: rows[0].update(split="holdout"), "unknown split"),
    "no patient": (lambda root, rows: rows[0].update(patient_id=""), "missing patient id"),
    "label missing": (lambda root, rows: [row.update(labels=[0] * 14) for row in rows[1:]], "missing labels"),
    "label of 13": (
        lambda root, rows: [row.update(labels=[0] * (14 if i else 13)) for i, row in enumerate(rows)],
        "missing labels",
    ),
}


def site(root: Path, break_it: Callable[[Path, Rows], None], **settings: Any) -> SiteConfig:
    rows = folders.manifest_rows()
    folders.manifest(root, rows)
    break_it(root, rows)
    folders.write_jsonl(root / "manifest.jsonl", rows)
    return SiteConfig(cohort=CohortConfig(format="manifest", root=root, **settings))


@pytest.mark.parametrize(("fault", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_counted_with_its_reason_and_the_rest_goes_on_unless_the_limit_is_passed(
    fault: Any, reason: str, tmp_path: Path
) -> None:
    samples = open_samples(site(tmp_path, fault, max_skipped=0.2), 16)
    assert samples.skipped() == {reason: 1}
    assert len(samples) == 5 == len(samples.cohort.studies) == len(samples.codes)
    assert samples.images(range(5)).isfinite().all()
    assert summarise(samples.cohort)["skipped"][reason]["count"] == 1
    with pytest.raises(DataError) as caught:
        open_samples(SiteConfig(cohort=CohortConfig(format="manifest", root=tmp_path)), 16)
    assert f"1 of 6 records cannot be used, allowed are 5.0% ({reason} 1)" in str(caught.value)
    assert "max_skipped" in str(caught.value)


def test_unreadable_lines_count_as_records(tmp_path: Path) -> None:
    with (folders.manifest(tmp_path) / "manifest.jsonl").open("a") as file:
        file.write("{broken\n[1]\n")
    cohort = read_cohort("manifest", tmp_path, max_skipped=0.3)
    assert (cohort.records, len(cohort.skipped), cohort.skipped[0].record) == (8, 2, "manifest.jsonl:7")


def test_a_file_that_was_cut_in_its_last_row_loses_that_row_and_says_so(tmp_path: Path) -> None:
    """Its report may be half of one, and its split, in a column behind, would be made up."""
    root = folders.manifest_csv(tmp_path)
    text = (root / "manifest.csv").read_text(encoding="utf-8").rstrip()
    (root / "manifest.csv").write_text(text[: text.rindex(",")], encoding="utf-8")
    cohort = read_cohort("manifest", root, max_skipped=0.5)
    assert [(item.record, item.reason) for item in cohort.skipped] == [("manifest.csv:7", "unreadable row")]
    assert "the last, has fewer values" in cohort.skipped[0].detail
    assert len(cohort.studies) == 5
    lines = text.splitlines()
    ends = [lines[0], *(line[: line.rindex(",")] for line in lines[1:])]
    (root / "manifest.csv").write_text("\n".join(ends) + "\n", encoding="utf-8")
    assert not read_cohort("manifest", root, max_skipped=0.5).skipped, "a program that leaves empty ends out"


def test_a_column_that_stands_twice_is_refused_where_it_is_used(tmp_path: Path) -> None:
    """A row holds the last of them alone, which may be another text than the one that was meant."""
    root = folders.manifest_csv(tmp_path)
    header, *rows = (root / "manifest.csv").read_text(encoding="utf-8").splitlines()
    (root / "manifest.csv").write_text(
        "\n".join([f"{header},note,note,report", *(f"{row},a,b,Another text." for row in rows)]) + "\n"
    )
    with pytest.raises(DataError, match="'report' stands 2 times"):
        read_cohort("manifest", root)
    with pytest.raises(DataError, match="'select' names note, which stands there more than once"):
        read_cohort("manifest", root, columns={"report": "view"}, select={"note": "b"})


def test_a_study_with_one_bad_image_keeps_the_good_one(tmp_path: Path) -> None:
    def second_is_bad(root: Path, rows: Rows) -> None:
        (root / "images" / "bad.png").write_bytes(b"\x89PNG")
        rows[0]["image"].append("images/bad.png")

    samples = open_samples(site(tmp_path, second_is_bad, max_skipped=0.2), 16)
    assert samples.skipped() == {"corrupt image": 1}
    assert (len(samples), len(samples.studies[0].images)) == (6, 1)


def test_nothing_usable_is_an_error_even_if_all_may_be_skipped(tmp_path: Path) -> None:
    folders.manifest(tmp_path, [row | {"report": ""} for row in folders.manifest_rows()])
    with pytest.raises(DataError, match=r"no usable record .*empty report 6"):
        read_cohort("manifest", tmp_path, max_skipped=1.0)


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
    cohort = read_cohort("manifest", root, max_skipped=0.2)
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
