# SPDX-License-Identifier: Apache-2.0
"""What the operating system refuses is a message with the path in every command, never a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from typer.core import TyperArgument, TyperGroup
from typer.testing import CliRunner

from command_line import medflare
from medflare.cli.main import app
from medflare.cli.output import PARTLY_DONE, ItemBatch, plain_errors
from medflare.core.errors import DataError
from medflare.wire.operating_system import operating_system_error

JOB = Path(__file__).parents[3] / "jobs/fedmrg"
SITE = "sites: {site-1: {cohort: {format: manifest, root: .}}}"
MORE = {
    "run": {"job": str(JOB), "site_file": "site.yaml", "rounds": "0"},
    "request": {"name": "site-1", "org": "a"},
    "assemble": {"fingerprint": "SHA256:00"},
    "make": {"patients": "2", "out": "made"},
}
"""Command -> parameters besides the one whose path is bad; `rounds` ends a run whose path is never opened."""
MESSAGES = range(1, 8)
"""Exit codes that come with a message."""


def commands(node: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that call it; typer brings a copy of click's classes."""
    if isinstance(node, TyperGroup):
        for name, child in sorted(node.commands.items()):
            yield from commands(child, (*words, name))
    else:
        yield words, node


def path_parameters(command: Any) -> list[str]:
    """Return the parameters of a command that are paths."""
    hints = get_type_hints(command.callback)
    return [name for name, hint in hints.items() if Path in (hint, *get_args(hint))]


COMMANDS = dict(commands(typer.main.get_command(app)))
PATHS = [
    pytest.param(words, name, id=f"{' '.join(words)} {name}")
    for words, command in COMMANDS.items()
    for name in path_parameters(command)
]


KINDS = ["garbage", "below a file", "circle", "missing", "folder", "proc", "too long"]
EVERY = os.environ.get("FAULTS") == "all"
"""Whether all kinds are tried, as `make test-faults` does; else the first three, which found most."""


@pytest.fixture(params=KINDS if EVERY else KINDS[:3])
def bad(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path that the operating system, or whoever reads it, refuses in one way or another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(SITE)
    (tmp_path / "file").write_bytes(b"\xff\x00\xfe garbage")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    return {
        "missing": tmp_path / "none",
        "below a file": tmp_path / "file/inside",
        "folder": tmp_path / "folder",
        "garbage": tmp_path / "file",
        "proc": Path("/proc/1/no/such"),
        "too long": tmp_path / ("x" * 300),
        "circle": tmp_path / "circle",
    }[request.param]


def call(words: tuple[str, ...], name: str, bad: Path) -> list[str]:
    """Return a command's words with one bad path and something plausible wherever it needs more."""
    given = {**MORE.get(words[-1], {}), name: str(bad)}
    options: list[str] = []
    arguments: list[str] = []
    for parameter in COMMANDS[words].params:
        value = given.get(str(parameter.name), "site.yaml" if parameter.required else None)
        if value is None:
            continue
        if isinstance(parameter, TyperArgument):
            arguments.append(value)
        else:
            options += [parameter.opts[0], value]
    return [*words, *options, "--", *arguments]


@pytest.mark.parametrize(("words", "name"), PATHS)
def test_a_path_that_cannot_be_used_is_never_a_traceback(
    words: tuple[str, ...], name: str, bad: Path
) -> None:
    result = medflare(*call(words, name, bad))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 0 or result.exit_code in MESSAGES
    assert result.exit_code == 0 or result.output.strip()


NUMBERS = [
    (errno.ENOENT, "no such file or folder"),
    (errno.EACCES, "no permission"),
    (errno.EROFS, "can only be read"),
    (errno.EISDIR, "is a folder"),
    (errno.ENOTDIR, "is a file and no folder"),
    (errno.ENOSPC, "no space left"),
    (errno.EDQUOT, "no space left"),
    (errno.EMFILE, "ulimit -n"),
    (errno.ENETDOWN, os.strerror(errno.ENETDOWN)),
]


@pytest.mark.parametrize(("number", "text"), NUMBERS)
def test_an_error_number_becomes_path_reason_and_advice(tmp_path: Path, number: int, text: str) -> None:
    program = typer.Typer()

    @program.command()
    @plain_errors
    def fail() -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "x"))

    result = CliRunner().invoke(program)
    assert result.exit_code == 6
    assert str(tmp_path / "x") in result.stderr
    assert text in result.stderr


def test_a_full_disk_is_known_by_the_text_of_other_libraries_too() -> None:
    error = RuntimeError(f"I/O error: {os.strerror(errno.ENOSPC)} (os error 28)")
    assert "no space left on the disk" in str(operating_system_error(error))
    assert operating_system_error(RuntimeError("a fault of ours")) is None
    assert operating_system_error(BrokenPipeError(errno.EPIPE, "closed")) is None


def test_a_relative_path_says_from_where_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"It counts from {tmp_path}" in str(operating_system_error(FileNotFoundError(2, "no", "x/y")))


def test_every_command_goes_through_the_one_place() -> None:
    plain = [words for words, command in COMMANDS.items() if not hasattr(command.callback, "__wrapped__")]
    assert plain == []


def batch_of(*wrong: int) -> int:
    """Return the exit code of a batch of three items, of which some are wrong."""
    program = typer.Typer()

    @program.command()
    @plain_errors
    def work() -> None:
        batch = ItemBatch()
        for number in range(3):
            with batch.item(f"file-{number}"):
                if number in wrong:
                    raise DataError("it is empty")
                typer.echo(f"done {number}")
        batch.finish()

    result = CliRunner().invoke(program)
    for number in range(3):
        assert (f"done {number}" in result.stdout) == (number not in wrong)
    if wrong and len(wrong) < 3:
        listed = ", ".join(f"file-{number}" for number in wrong)
        assert f"{len(wrong)} of 3 left out: {listed}. The others are done." in result.stderr
    return result.exit_code


def test_a_bad_item_of_a_batch_costs_itself_only() -> None:
    assert batch_of() == 0
    assert batch_of(0) == batch_of(1, 2) == PARTLY_DONE
    assert batch_of(0, 1, 2) == DataError.exit_code
