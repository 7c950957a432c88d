# SPDX-License-Identifier: Apache-2.0
"""The site's book: what it remembers of whom, what a crash leaves, and that forgetting counts as spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medflare.core.patient_privacy import Mechanism
from medflare.differential_privacy import spending
from medflare.differential_privacy.spending import ACCOUNT, HEAD, SpendingBook, SpendingError

ONE = Mechanism(noise=1.0, rate=0.1, steps=10)
OTHER = Mechanism(noise=2.0, rate=0.1, steps=5)
PATIENTS = ["a", "b", "c"]


def charged(folder: Path, *charges: tuple[list[str], Mechanism, str]) -> SpendingBook:
    book = SpendingBook(folder)
    for patients, done, run in charges:
        book.charge(patients, done, run)
    return book


def test_jobs_add_up_over_restarts_and_the_order_of_patients_does_not_matter(tmp_path: Path) -> None:
    charged(tmp_path, (PATIENTS, ONE, "r1"), (PATIENTS[::-1], ONE, "r1"), (PATIENTS, OTHER, "r2"))
    twenty = Mechanism(noise=1.0, rate=0.1, steps=20)
    assert SpendingBook(tmp_path).spent(["c", "a", "b"]) == [twenty, OTHER]
    total, of_run = SpendingBook(tmp_path).charge(PATIENTS, OTHER, "r2")
    assert (total, of_run) == ([twenty, OTHER, OTHER], [OTHER, OTHER])


def test_a_set_that_shares_a_patient_inherits_what_was_done_to_it(tmp_path: Path) -> None:
    book = charged(tmp_path, (PATIENTS, ONE, "r1"), (["x"], OTHER, "r2"))
    assert book.spent(["a", "d"]) == [ONE]
    assert book.spent(["x", "c"]) == [ONE, OTHER]
    assert book.spent(["y"]) == []


def test_the_book_names_no_patient_and_equal_names_differ_between_sites(tmp_path: Path) -> None:
    charged(tmp_path / "one", (["Meyer, Anna"], ONE, "r"))
    charged(tmp_path / "two", (["Meyer, Anna"], ONE, "r"))
    one, two = ((tmp_path / name / ACCOUNT).read_text() for name in ("one", "two"))
    assert "Meyer" not in one
    assert json.loads(one)["sets"][0]["patients"] != json.loads(two)["sets"][0]["patients"]
    assert (tmp_path / "one" / HEAD).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("lost", [ACCOUNT, HEAD])
def test_a_lost_file_counts_as_spent(tmp_path: Path, lost: str) -> None:
    book = charged(tmp_path, (PATIENTS, ONE, "r1"))
    (tmp_path / lost).unlink()
    for ask in (lambda: book.spent(PATIENTS), lambda: book.charge(PATIENTS, ONE, "r2")):
        with pytest.raises(SpendingError, match="everything counts as spent"):
            ask()


@pytest.mark.parametrize("edit", ["steps", "patients", "number", "half"])
def test_an_edited_book_counts_as_spent(tmp_path: Path, edit: str) -> None:
    book, file = charged(tmp_path, (PATIENTS, ONE, "r1")), tmp_path / ACCOUNT
    content = json.loads(file.read_text())
    if edit == "steps":
        content["sets"][0]["charges"][0]["steps"] = 1
    elif edit == "patients":
        content["sets"][0]["patients"] = ["0" * 32]
    elif edit == "number":
        content["number"] = 0
    text = json.dumps(content)
    file.write_text(text[: len(text) // 2] if edit == "half" else text)
    with pytest.raises(SpendingError, match="everything counts as spent"):
        book.spent(PATIENTS)


def test_an_older_copy_of_the_book_counts_as_spent(tmp_path: Path) -> None:
    book = charged(tmp_path, (PATIENTS, ONE, "r1"))
    older = (tmp_path / ACCOUNT).read_bytes()
    charged(tmp_path, (PATIENTS, ONE, "r2"), (PATIENTS, ONE, "r3"))
    (tmp_path / ACCOUNT).write_bytes(older)
    with pytest.raises(SpendingError, match="older copy"):
        book.spent(PATIENTS)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_crash_between_the_files_forgets_nothing_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, writes: int
) -> None:
    """The process dies after `writes` files were written: what was admitted is counted or was not begun."""
    book, done, write = SpendingBook(tmp_path), 0, spending.write_json
    for _ in range(before):
        book.charge(PATIENTS, ONE, "r1")

    def dying(path: Path, data: object) -> None:
        nonlocal done
        if done == writes:
            raise KeyboardInterrupt
        done += 1
        write(path, data)

    monkeypatch.setattr(spending, "write_json", dying)
    finished = True
    try:
        book.charge(PATIENTS, OTHER, "r2")
    except KeyboardInterrupt:
        finished = False
    monkeypatch.setattr(spending, "write_json", write)
    found = SpendingBook(tmp_path).spent(PATIENTS)
    assert found in ([ONE] * before, [*[ONE] * before, OTHER])
    assert OTHER in found or not finished
    SpendingBook(tmp_path).charge(PATIENTS, ONE, "r3")
    assert SpendingBook(tmp_path).spent(PATIENTS)[-1] == ONE


def test_what_is_not_admitted_is_not_written(tmp_path: Path) -> None:
    book = charged(tmp_path, (PATIENTS, ONE, "r1"))

    def refuse(total: list[Mechanism]) -> None:
        assert total == [ONE]
        raise SpendingError("no")

    with pytest.raises(SpendingError, match="no"):
        book.charge(PATIENTS, OTHER, "r2", refuse)
    assert book.spent(PATIENTS) == [ONE]
