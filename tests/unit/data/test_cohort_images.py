# SPDX-License-Identifier: Apache-2.0
"""Images keep their sides and their greys whatever the file type, and are decoded once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cohort_folders as folders
import numpy as np
import pytest
import torch
from PIL import Image

from medflare.core.errors import DataError
from medflare.data import store as store_module
from medflare.data.images import DecodeError, augment, centre, fit_square, read_image, scan
from medflare.data.settings.cohort import ScannerConfig
from medflare.data.store import ImageSample, ImageStore, one_image

pytestmark = pytest.mark.filterwarnings("ignore:PydicomReader")

IMAGE = folders.corner_image()


def jpeg(path: Path) -> Path:
    Image.fromarray(IMAGE).save(path.with_suffix(".jpg"), quality=95)
    return path.with_suffix(".jpg")


def webp(path: Path) -> Path:
    Image.fromarray(IMAGE).save(path.with_suffix(".webp"), lossless=True)
    return path.with_suffix(".webp")


def turned_by_exif(path: Path) -> Path:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: viewers rotate by 90 degrees clockwise
    Image.fromarray(np.rot90(IMAGE)).save(path.with_suffix(".jpg"), exif=exif, quality=95)
    return path.with_suffix(".jpg")


def nifti(affine: np.ndarray | None, volume: np.ndarray) -> Callable[[Path], Path]:
    return lambda path: folders.write_nifti(path.with_suffix(".nii.gz"), volume.astype(np.float32), affine)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "png": lambda p: folders.write_png(p.with_suffix(".png"), IMAGE),
    "png 16 bit": lambda p: folders.write_png(p.with_suffix(".png"), IMAGE.astype(np.uint16) * 200),
    "png colour": lambda p: folders.write_png(p.with_suffix(".png"), np.stack([IMAGE] * 3, -1)),
    "png alpha": lambda p: folders.write_png(
        p.with_suffix(".png"), np.stack([IMAGE] * 3 + [np.full_like(IMAGE, 255)], -1)
    ),
    "tiff float": lambda p: folders.write_png(p.with_suffix(".tiff"), IMAGE.astype(np.float32) / 7),
    "jpeg": jpeg,
    "webp": webp,
    "jpeg with exif": turned_by_exif,
    "dicom monochrome2": lambda p: folders.write_dicom(p.with_suffix(".dcm"), IMAGE),
    "dicom monochrome1": lambda p: folders.write_dicom(p.with_suffix(".dcm"), IMAGE, "MONOCHROME1"),
    "dicom rescaled": lambda p: folders.write_dicom(p.with_suffix(".dcm"), IMAGE, slope=2.5),
    "dicom without suffix": lambda p: folders.write_dicom(p.with_name("IM0001"), IMAGE),
    "nifti without affine": nifti(None, IMAGE.T),
    "nifti identity": nifti(np.eye(4), IMAGE.T[:, :, None]),
    "nifti from SimpleITK": nifti(np.diag([-1.0, -1, 1, 1]), IMAGE.T[:, :, None]),
    "nifti from dcm2niix": nifti(np.diag([-0.2, 0.2, 1, 1]), IMAGE[::-1].T[:, :, None]),
    "nifti right to left": nifti(np.diag([0.2, 0.2, 1, 1]), IMAGE[::-1, ::-1].T[:, :, None]),
    "nifti coronal": nifti(
        np.array([[-1.0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]]), IMAGE[::-1].T[:, :, None]
    ),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_bright_corner_stays_top_left_and_values_span_the_range(
    write: Callable[[Path], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    image = read_image(write(tmp_path / "image"))
    assert (image.shape, image.dtype) == (IMAGE.shape, np.float32)
    assert image.min() >= 0
    assert image.max() <= 1
    assert image[5:15, 4:13].min() > 0.85
    assert image[5:15, -13:-4].max() < 0.35
    assert image[-15:-5].max() < 0.35
    assert "nvImageCodec" not in "".join(capfd.readouterr())


def test_a_file_of_another_kind_is_not_called_a_broken_dicom(tmp_path: Path) -> None:
    Image.fromarray(IMAGE).save(tmp_path / "a.gif")
    with pytest.raises(
        DecodeError,
        match=r"a.gif: cannot be decoded: it is no DICOM file, and its name ends in none of .png,",
    ):
        read_image(tmp_path / "a.gif")


def test_eight_bits_are_not_stretched(tmp_path: Path) -> None:
    image = read_image(folders.write_png(tmp_path / "a.png", IMAGE))
    np.testing.assert_allclose(image, IMAGE / 255, atol=1e-6)


def test_a_large_jpeg_is_decoded_small_and_looks_the_same(tmp_path: Path) -> None:
    big = np.kron(IMAGE, np.ones((16, 16), np.uint8))
    Image.fromarray(big).save(tmp_path / "big.jpg", quality=95)
    small = read_image(tmp_path / "big.jpg", at_least=80)
    assert min(small.shape) >= 80
    assert small.shape[0] < big.shape[0]
    difference = (fit_square(small, 40) - fit_square(big / 255, 40)).abs()
    assert difference.mean() < 0.02


@pytest.mark.parametrize("shape", [(48, 40), (40, 48), (7, 90)])
def test_fitting_cuts_nothing(shape: tuple[int, int]) -> None:
    image = np.ones(shape, np.float32)
    square = fit_square(image, 32)
    assert square.shape == (32, 32)
    assert abs(float(square.mean()) - min(shape) / max(shape)) < 0.05


def test_scanner_blurs_and_stretches_but_identity_changes_nothing() -> None:
    image = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scan(image, ScannerConfig()), image)
    assert scan(image, ScannerConfig(blur=1.0)).std() < image.std() * 0.6
    assert scan(image, ScannerConfig(brightness=0.8)).mean() < image.mean()


def test_augment_is_seeded_varied_and_never_flips() -> None:
    base = fit_square(IMAGE / 255.0, 40).expand(64, 1, 40, 40)
    first = augment(base, 35, 5.0, torch.Generator().manual_seed(3))
    again = augment(base, 35, 5.0, torch.Generator().manual_seed(3))
    assert first.shape == (64, 1, 35, 35)
    torch.testing.assert_close(first, again)
    assert (first[0] - first[1]).abs().mean() > 0.01
    columns = torch.arange(35.0)
    weight = (first > 0.7).float().sum((1, 2))
    assert ((weight * columns).sum(1) / weight.sum(1) < 17).all()


def test_augment_without_room_or_angle_is_the_identity() -> None:
    images = torch.rand(2, 1, 24, 24)
    torch.testing.assert_close(augment(images, 24, 0.0, torch.Generator()), images, atol=1e-5, rtol=1e-5)


def test_augment_turns_by_the_angle_and_keeps_the_scale() -> None:
    disc = torch.zeros(1, 1, 40, 40)
    disc[0, 0, 18:22, 18:22] = 1
    for seed in range(5):
        turned = augment(disc, 40, 5.0, torch.Generator().manual_seed(seed))
        assert abs(float(turned.sum()) - 16) < 0.8


def test_centre_takes_the_middle() -> None:
    images = torch.arange(36.0).reshape(1, 1, 6, 6)
    assert centre(images, 2).flatten().tolist() == [14, 15, 20, 21]
    assert centre(images, 12).shape == (1, 1, 12, 12)


def samples(folder: Path, count: int = 4) -> list[ImageSample]:
    paths = [folders.write_png(folder / f"{i}.png", folders.corner_image(i)) for i in range(count)]
    return [ImageSample(str(index), path) for index, path in enumerate(paths)]


def test_cache_is_reused_and_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = samples(tmp_path)
    cached.append(ImageSample("bad", tmp_path / "absent.png"))
    first = ImageStore(cached, 16, tmp_path / "cache")
    monkeypatch.setattr(store_module, "read_image", lambda *a, **k: pytest.fail("decoded again"))
    second = ImageStore(cached, 16, tmp_path / "cache")
    assert (first.decoded, second.decoded) == (5, 0)
    assert first.failed == second.failed
    assert [item.reason for item in second.failed] == ["missing image"]
    torch.testing.assert_close(first.batch([3, 0]), second.batch([3, 0]))


def test_changed_file_other_size_or_scanner_is_decoded_again(tmp_path: Path) -> None:
    cached = samples(tmp_path, 2)
    ImageStore(cached, 16, tmp_path / "cache")
    assert ImageStore(cached, 24, tmp_path / "cache").decoded == 2
    assert (
        ImageStore(
            [ImageSample(s.record, s.path, ScannerConfig(blur=1)) for s in cached], 16, tmp_path
        ).decoded
        == 2
    )
    folders.write_png(cached[0].path, folders.corner_image(9, (50, 50)))
    assert ImageStore(cached, 16, tmp_path / "cache").decoded == 2


def test_damaged_cache_is_made_again(tmp_path: Path) -> None:
    cached = samples(tmp_path, 2)
    ImageStore(cached, 16, tmp_path / "cache")
    next((tmp_path / "cache").glob("*.npy")).write_bytes(b"half a file")
    assert ImageStore(cached, 16, tmp_path / "cache").decoded == 2


def test_ram_and_cache_hold_the_same(tmp_path: Path) -> None:
    cached = samples(tmp_path)
    batch = ImageStore(cached, 16).batch(torch.tensor([2, 1]))
    assert (batch.shape, batch.dtype) == ((2, 1, 16, 16), torch.float32)
    torch.testing.assert_close(batch, ImageStore(cached, 16, tmp_path / "cache").batch([2, 1]))


def test_a_single_image_looks_as_in_the_store(tmp_path: Path) -> None:
    cached = samples(tmp_path, 1)
    torch.testing.assert_close(one_image(cached[0].path, 16)[0], ImageStore(cached, 16).batch([0]))
    with pytest.raises(DataError, match="no such file"):
        one_image(tmp_path / "absent.png", 16)


def test_a_cohort_of_pictures_is_read_without_importing_monai(tmp_path: Path) -> None:
    """Its import takes seconds at every site; a NIfTI file asks for it."""
    Image.fromarray(np.arange(4096, dtype=np.uint8).reshape(64, 64)).save(tmp_path / "a.png")
    program = (
        "import sys; from pathlib import Path; from medflare.data.images import read_image, warm_up\n"
        "path = Path(sys.argv[1]); warm_up([path]); print(read_image(path).shape, 'monai' in sys.modules)\n"
        "warm_up([path, Path('b.nii.gz')]); print('monai' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["(64, 64) False", "True"]
