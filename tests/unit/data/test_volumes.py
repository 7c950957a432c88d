# SPDX-License-Identifier: Apache-2.0
"""CT volumes become evenly spaced axial slices as a radiologist sees them, whatever the file's axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cohort_folders as folders
import numpy as np
import pytest

from medflare.data.images import DecodeError
from medflare.data.samples import open_samples
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.data.settings.visits import VisitConfig
from medflare.data.visit_samples import open_visits
from medflare.data.volumes import read_slice, read_slices, slice_positions

DEPTH = 20


def body() -> np.ndarray:
    """(12, 16, 20) from the right, front and feet: bright at the right front, brighter to the head."""
    volume = np.zeros((12, 16, DEPTH), np.float32)
    volume[1:4, 2:5] = 500
    return volume + np.arange(DEPTH, dtype=np.float32) * 10 - 1000


def nifti(path: Path, codes: str = "LPS") -> Path:
    """The body in a file whose axes run as `codes` say, L meaning towards the left."""
    volume, signs = body(), []
    for axis, (code, forward) in enumerate(zip(codes, "LPS", strict=True)):
        if code != forward:
            volume = np.flip(volume, axis)
        signs.append({"L": -1, "R": 1, "P": -1, "A": 1, "S": 1, "I": -1}[code])
    affine = np.diag([0.7 * signs[0], 0.7 * signs[1], 2 * signs[2], 1])
    folders.write_nifti(path, np.ascontiguousarray(volume), affine)
    return path


def dicom_series(folder: Path) -> Path:
    """The body as one axial DICOM file a slice, file names shuffled, values to be rescaled."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True)
    series = generate_uid()
    for z in range(DEPTH):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid()
        path = folder / f"{(z * 7) % DEPTH:03d}.dcm"
        dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        stored = (body()[:, :, z].T + 1024).astype(np.uint16)
        dataset.Rows, dataset.Columns = stored.shape
        dataset.SamplesPerPixel, dataset.PixelRepresentation = 1, 0
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
        dataset.PhotometricInterpretation = "MONOCHROME2"
        dataset.RescaleSlope, dataset.RescaleIntercept = 1, -1024
        dataset.PixelSpacing, dataset.SliceThickness = [0.7, 0.7], 2.0
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.ImagePositionPatient = [0.0, 0.0, 2.0 * z]
        dataset.InstanceNumber, dataset.SeriesInstanceUID = z + 1, series
        dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
        dataset.PixelData = stored.tobytes()
        dataset.save_as(path, enforce_file_format=True)
    return folder


def site(root: Path, image: str, *, slices: int | None = 4, **settings: Any) -> SiteConfig:
    """Patient A came once for a radiograph and once for the volume `image`."""
    rows = folders.manifest_rows()[:2]
    for index, row in enumerate(rows):
        row |= {"patient_id": "A", "sex": "F", "day": 10 * index}
    rows[1]["image"] = [image]
    folders.manifest(root, rows)
    visits = VisitConfig(slices=slices, **settings)
    config = CohortConfig(format="manifest", root=root, visits=visits, max_skipped=1.0)
    return SiteConfig(name="site-1", cohort=config)


@pytest.mark.parametrize(
    ("depth", "count", "positions"),
    [(20, 4, [2, 7, 12, 17]), (20, 1, [10]), (3, 3, [0, 1, 2]), (100, 8, [6, 18, 31, 43, 56, 68, 81, 93])],
)
def test_slices_are_the_middles_of_equal_parts(depth: int, count: int, positions: list[int]) -> None:
    assert slice_positions(depth, count) == positions


@pytest.mark.parametrize("codes", ["LPS", "RAS", "LAS", "RPI"])
def test_every_orientation_of_the_file_gives_the_same_picture(codes: str, tmp_path: Path) -> None:
    slices = read_slices(nifti(tmp_path / "ct.nii.gz", codes), 4)
    assert slices.shape == (4, 16, 12)
    assert slices.dtype == np.float32
    assert slices.min() >= 0
    assert slices.max() <= 1
    assert (slices[:, 2:5, 1:4].min((1, 2)) > slices[:, 8:, 6:].max((1, 2)) + 0.5).all()
    rising = slices[:, 10, 10]
    assert (np.diff(rising) > 0).all()


def test_a_dicom_series_is_the_same_volume(tmp_path: Path) -> None:
    series = read_slices(dicom_series(tmp_path / "series"), 4, (-700.0, 1000.0))
    np.testing.assert_allclose(
        series, read_slices(nifti(tmp_path / "ct.nii"), 4, (-700.0, 1000.0)), atol=1e-5
    )


def test_a_window_maps_hounsfield_units(tmp_path: Path) -> None:
    slices = read_slices(nifti(tmp_path / "ct.nii"), 4, (-700.0, 1000.0))
    values = body()[:, :, [2, 7, 12, 17]].transpose(2, 1, 0)
    np.testing.assert_allclose(slices, np.clip((values + 1200) / 1000, 0, 1), atol=1e-6)


def test_one_slice_is_that_of_all(tmp_path: Path) -> None:
    path = nifti(tmp_path / "ct.nii")
    np.testing.assert_array_equal(read_slice(path, 2, 4), read_slices(path, 4)[2])


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: None, "missing image"),
        (lambda path: path.write_bytes(b"no volume"), "corrupt image"),
        (lambda path: folders.write_nifti(path, np.zeros((8, 8, 8), np.float32), None), "constant image"),
        (
            lambda path: folders.write_nifti(path, np.random.rand(8, 8, 3).astype("f4"), None),
            "too few slices",
        ),
        (lambda path: folders.write_nifti(path, np.full((8, 8, 8), np.nan, "f4"), None), "NaN pixels"),
        (
            lambda path: folders.write_nifti(path, np.random.rand(8, 8, 8, 2).astype("f4"), None),
            "not a volume",
        ),
    ],
)
def test_a_bad_volume_has_a_reason(write: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "ct.nii"
    write(path)
    with pytest.raises(DecodeError) as caught:
        read_slice(path, 0, 4)
    assert caught.value.reason == reason
    with pytest.raises(DecodeError):  # and again, when it is remembered
        read_slice(path, 1, 4)


@pytest.mark.parametrize("kind", ["nifti", "series"])
def test_a_visit_may_be_a_volume_and_another_a_radiograph(kind: str, tmp_path: Path) -> None:
    image = "ct.nii.gz" if kind == "nifti" else "series"
    config = site(tmp_path, image)
    nifti(tmp_path / image) if kind == "nifti" else dicom_series(tmp_path / image)
    samples = open_visits(config, 16, tmp_path / "cache")
    images, there = samples.images(samples.rows("train"))
    assert images.shape == (2, 4, 1, 16, 16)
    assert there.tolist() == [[True, False, False, False], [True] * 4]
    again = open_visits(config, 16, tmp_path / "cache")
    assert again.store.decoded == 0
    assert (again.images([0, 1])[0] == images).all()


def test_a_damaged_volume_costs_its_visit(tmp_path: Path) -> None:
    config = site(tmp_path, "ct.nii")
    (tmp_path / "ct.nii").write_bytes(b"damaged")
    samples = open_visits(config, 16)
    assert (len(samples), set(samples.skipped())) == (1, {"corrupt image"})


def test_without_slices_a_volume_is_no_radiograph(tmp_path: Path) -> None:
    config = site(tmp_path, "ct.nii", slices=None)
    nifti(tmp_path / "ct.nii")
    assert open_visits(config, 16).skipped() == {"not a radiograph": 1}
    assert open_samples(config, 16).skipped() == {"not a radiograph": 1}
