# SPDX-License-Identifier: Apache-2.0
"""`cohort make` and `partition` write a whole folder or none, and never over what somebody put there."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import answer, facts, refusal
from medflare.core import made_folders
from medflare.core.errors import ConfigError
from medflare.core.made_folders import MadeFolder
from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site_file

SORT = MadeFolder("things", "mark.txt", "# things")
MAKE = ("cohort", "make")
FEW = ("--questions", "--hospitals", "2", "--records", "20")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_hospitals_that_are_made_again_are_asked_for_and_hold_nothing_of_the_first(tmp_path: Path) -> None:
    """Notes of patients whom nobody asked for would have been trained on."""
    out = tmp_path / "notes"
    answer(*MAKE, out, "--notes", "--patients", "6")
    before = contents(out)
    assert "holds synthetic hospitals already; --overwrite" in refusal(2, *MAKE, out, "--notes")
    assert contents(out) == before
    made = facts(*MAKE, out, "--notes", "--patients", "3", "--overwrite")
    assert made["hospitals"]["site-1"] == {"patients": 3, "folder": str(out / "site-1")}
    for config in load_site_file(out / "site.yaml").values():
        assert len({note.patient_id for note in load_cohort(config).notes}) <= 5, "validation has five"
    assert len(load_cohort(load_site_file(out / "site.yaml")["site-1"]).notes) == 3
    answer(*MAKE, out, *FEW, "--overwrite")
    assert not list(out.rglob("*.ann"))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("here", ["a hospital's folder", "an empty one"])
def test_hospitals_are_made_where_one_stands_unless_something_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.chdir(folder)
    if here == "an empty one":
        answer(*MAKE, ".", *FEW)
        assert Path("site.yaml").is_file(), "the folder in which the user stands is the one that was filled"
        return
    Path("site.yaml").write_text("name: a-real-hospital\n")
    Path("hospitals.key").write_text("the key of all its sketches")
    before = contents(folder)
    for more in ((), ("--overwrite",)):
        assert "is not empty and holds no synthetic hospitals" in refusal(2, *MAKE, ".", *FEW, *more)
    assert contents(folder) == before


def test_a_partition_does_not_replace_the_file_that_it_deals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(*MAKE, tmp_path / "made", *FEW)
    pool = tmp_path / "pool"
    pool.mkdir()
    cohort = {"format": "questions_jsonl", "root": str(tmp_path / "made/site-1")}
    (pool / "site.yaml").write_text(yaml.safe_dump({"name": "pool", "cohort": cohort}))
    monkeypatch.chdir(pool)
    deal = ("cohort", "partition", "site.yaml")
    assert "is not empty and holds no partition of a cohort" in refusal(2, *deal, ".", "--sites", "2")
    assert list(contents(pool)) == ["site.yaml"]
    dealt = facts(*deal, "parts", "--sites", "4")
    assert dealt["site_file"] == "parts/site.yaml"
    refusal(2, *deal, "parts", "--sites", "2")
    answer(*deal, "parts", "--sites", "2", "--overwrite")
    assert sorted(path.name for path in Path("parts").iterdir()) == ["site-1", "site-2", "site.yaml"]
    count = sum(len(load_cohort(one).questions) for one in load_site_file(Path("parts/site.yaml")).values())
    assert count == len(load_cohort(load_site_file(Path("site.yaml"))["pool"]).questions)


def test_what_fails_leaves_the_old_folder_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with SORT.building(out, overwrite=False) as folder:
        (folder / "mark.txt").write_text("# things, the first")
        (folder / "a").write_text("a")
    before = contents(out)

    def fail() -> None:
        with SORT.building(out, overwrite=True) as folder:
            (folder / "mark.txt").write_text("# things, the second")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def race() -> None:
        with SORT.building(out, overwrite=True) as folder:
            (folder / "mark.txt").write_text("# things")
            out.mkdir()
            (out / "mark.txt").write_text("somebody else's")

    with pytest.raises(ConfigError, match="is not empty"):
        race()
    assert contents(out) == {"mark.txt": b"somebody else's"}


def test_two_commands_do_not_make_one_folder_at_once(tmp_path: Path) -> None:
    out, half = tmp_path / "out", tmp_path / "out.building"
    with SORT.building(out, overwrite=False) as folder:
        (folder / "mark.txt").write_text("# things")
        with (
            pytest.raises(ConfigError, match="another command is making"),
            SORT.building(out, overwrite=True),
        ):
            pass
        assert contents(half) == {"mark.txt": b"# things"}
    assert contents(out) == {"mark.txt": b"# things"}
    half.mkdir()
    (half / "left").write_text("by a command that was killed")
    with SORT.building(out, overwrite=True) as folder:
        (folder / "mark.txt").write_text("# things, the second")
    assert contents(out) == {"mark.txt": b"# things, the second"}
    assert not half.exists()


def test_a_disk_that_locks_no_folders_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS wants a file that is open for writing, and a folder never is."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(made_folders.fcntl, "flock", refuse)
    out = tmp_path / "out"
    with SORT.building(out, overwrite=False) as folder:
        (folder / "mark.txt").write_text("# things")
    assert contents(out) == {"mark.txt": b"# things"}


@pytest.mark.parametrize("when", ["before it is opened", "before it is locked", "before it is made"])
def test_of_two_commands_that_begin_in_the_same_instant_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The other one comes between a folder's making and its lock, clears it away and makes its own."""
    out, half = tmp_path / "out", tmp_path / "out.building"
    opened, locked, made = os.open, fcntl.flock, Path.mkdir

    def other() -> None:
        monkeypatch.undo()
        if half.exists():
            half.rmdir()
        half.mkdir()
        (half / "mark.txt").write_text("the other's")

    def opening(*args: Any, **more: Any) -> int:
        if when == "before it is opened":
            monkeypatch.undo()
            half.rmdir()
        return opened(*args, **more)

    def locking(*args: Any) -> None:
        if when == "before it is locked":
            other()
        locked(*args)

    def making(path: Path, *args: Any, **more: Any) -> None:
        if when == "before it is made":
            other()
        made(path, *args, **more)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(fcntl, "flock", locking)
    monkeypatch.setattr(Path, "mkdir", making)
    with (
        pytest.raises(ConfigError, match="another command is making"),
        SORT.building(out, overwrite=False),
    ):
        pass
    assert not out.exists()
    assert when == "before it is opened" or contents(half) == {"mark.txt": b"the other's"}
