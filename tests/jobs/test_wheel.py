# SPDX-License-Identifier: Apache-2.0
"""The wheel, built and installed into an environment that has the other packages and no source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from medflare.version import __version__

ROOT = Path(__file__).parents[2]
SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources, so that no build folder is left in them."""
    copy = tmp_path_factory.mktemp("sources")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("custom", "jobs"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", copy / "dist", copy)
    (built,) = (copy / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment with the wheel; other packages are those of this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Path files of a folder that a path file names are not read: the editable install here is not seen.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip("--python", folder / "bin/python", "install", "--no-deps", "--no-index", "--no-compile", wheel)
    return folder / "bin"


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=without_path(), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def without_path() -> dict[str, str]:
    """The environment variables, without the one by which Python would find the sources."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def output(program: Path, *arguments: object, folder: Path) -> str:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=without_path(), cwd=folder, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_of_the_package_is_in_the_wheel_and_no_tests_are(wheel: Path) -> None:
    package = ROOT / "custom"
    expected = {
        str(path.relative_to(package))
        for path in (package / "medflare").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    jobs = f"medflare-{__version__}.data/data/share/medflare/jobs/"
    expected |= {
        jobs + str(path.relative_to(ROOT / "jobs"))
        for pattern in ("*/meta.json", "*/app/config/*.json")
        for path in (ROOT / "jobs").glob(pattern)
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert wheel.name.startswith(f"medflare-{__version__}-")


def test_the_installed_command_works_without_the_sources(installed: Path, tmp_path: Path) -> None:
    where = "import medflare; print(medflare.__file__)"
    assert str(installed.parent) in output(installed / "python", "-c", where, folder=tmp_path)
    medflare = installed / "medflare"
    assert output(medflare, "--version", folder=tmp_path).strip() == __version__
    assert "fedmrg" in output(medflare, "methods", folder=tmp_path)
    made = ("cohort", "make", "cohorts", "--patients", 3, "--size", 32, "--no-sheet")
    assert "site file: cohorts/site.yaml" in output(medflare, *made, folder=tmp_path)
    assert len(list((tmp_path / "cohorts").glob("*/manifest.jsonl"))) == 4
    program = "from pathlib import Path\nfrom medflare.recipes.job_reader import read_job\n"
    for name in ("fedvit_gpt2_krum", "jobs/fedvit_gpt2_krum"):
        read = f"{program}print(read_job(Path('{name}')).aggregation['rule'])"
        assert output(installed / "python", "-c", read, folder=tmp_path).strip() == "krum"
