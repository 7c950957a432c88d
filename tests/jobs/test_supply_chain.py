# SPDX-License-Identifier: Apache-2.0
"""Lock files of the image: every package has one version and hashes, and setup.cfg agrees with them."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "provisioning" / "docker"
PINNED = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)")


def entries(name: str) -> list[str]:
    """Return the logical lines of a lock file, continued lines joined."""
    text = re.sub(r"\s*\\\n\s*", " ", (FOLDER / name).read_text(encoding="utf-8"))
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def locked(name: str) -> dict[str, str]:
    """Return version by package; fails for a line that is anything but a version with hashes."""
    matches = [(line, PINNED.fullmatch(line)) for line in entries(name)]
    assert [line for line, match in matches if match is None] == []
    return {canonicalize_name(match["name"]): match["version"] for _, match in matches if match}


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_every_line_is_one_version_with_hashes(name: str) -> None:
    """No index, no address and no path, either: hashes say what is meant wherever it comes from."""
    assert locked(name)
    assert not re.search(r"https?:|file:|index-url|find-links|(?<!\\)\s/", "\n".join(entries(name)))


def test_every_requirement_of_the_package_is_locked_in_a_version_that_it_allows() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    versions = locked("requirements.lock")
    for line in config["options"]["install_requires"].split("\n"):
        if line.strip():
            requirement = Requirement(line)
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), line


def test_what_builds_is_of_the_same_version_in_both_files() -> None:
    build, everything = locked("build.lock"), locked("requirements.lock")
    assert {name: everything[name] for name in build} == build


def test_the_image_installs_nothing_without_a_hash() -> None:
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text(encoding="utf-8"))
    installs = re.findall(r"pip install (.+?)(?= && |\n)", text)
    assert len(installs) == 3
    assert all("--require-hashes" in line for line in installs[:2])
    assert installs[2].split() == ["--no-deps", "--no-build-isolation", "."]
