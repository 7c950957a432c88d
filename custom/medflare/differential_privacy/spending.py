# SPDX-License-Identifier: Apache-2.0
"""A site's book of what its patients have spent, over all jobs: files that a crash leaves whole.

Two files lie in the folder. `account.json` holds, for each set of patients that was ever trained on, what was
done to it; `head.json` holds the key that seals the book, its number and its digest. The book is written
first, then the head, so after a crash the book is one ahead of the head and names the digest that the head
has. A book that fits neither way was edited, put back from an older copy, or lost, and then everything counts
as spent: forgetting would be a new budget for the same patients.

Patients are in the book as keyed digests. Who has lost what is a question of persons, not of jobs: a set that
shares one patient with an earlier set inherits all that was done to that set.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medflare.core.errors import MedflareError
from medflare.core.patient_privacy import Mechanism
from medflare.wire.durable import read_json, write_json
from medflare.wire.process_file import FolderLock

ACCOUNT, HEAD = "account.json", "head.json"
LOCK_SECONDS = 30.0
_DIGEST_BYTES = 16
Admit = Callable[[list[Mechanism]], None]


class SpendingError(MedflareError):
    """The book of a site's privacy spending cannot be believed; everything counts as spent."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Charge(_Strict):
    """Steps of one run over a set of patients, written before they are done."""

    run: str
    noise: float = Field(gt=0)
    rate: float = Field(gt=0, le=1)
    steps: int = Field(ge=1)

    @property
    def mechanism(self) -> Mechanism:
        """The charge without the run."""
        return Mechanism(noise=self.noise, rate=self.rate, steps=self.steps)


class PatientSet(_Strict):
    """Keyed digests of a set of patients, in order, and what was done to them."""

    patients: tuple[str, ...]
    charges: tuple[Charge, ...] = ()


class Account(_Strict):
    """The book: its number, the digest of the one before, and all sets of patients."""

    number: int = 0
    previous: str = ""
    sets: tuple[PatientSet, ...] = ()
    seal: str = ""


class Head(_Strict):
    """Facts that the book must agree with."""

    key: str
    number: int
    digest: str


class SpendingBook:
    """The book in one folder of a site.

    Args:
        folder: outside every job's folder, which a server can empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.account_file, self.head_file = folder, folder / ACCOUNT, folder / HEAD

    def spent(self, patients: Sequence[str]) -> list[Mechanism]:
        """Return everything that was done to sets that share a patient with this one.

        Raises:
            SpendingError: the book was edited or is lost.
        """
        account, head = self._read()
        return [charge.mechanism for charge in _charges(account, self._digests(patients, head))]

    def charge(
        self, patients: Sequence[str], done: Mechanism, run: str, admit: Admit = lambda total: None
    ) -> tuple[list[Mechanism], list[Mechanism]]:
        """Write down what is about to be done to these patients, on disk before it is done.

        Args:
            admit: asked with everything done before, while nobody else can write; raises where it may not be
                done.

        Returns:
            (everything done to these patients, of it this run's), this included.

        Raises:
            SpendingError: the book was edited or is lost.
        """
        with self._locked():
            account, head = self._read()
            digests = self._digests(patients, head)
            before = _charges(account, digests)
            total, of_run = (
                [c.mechanism for c in before if every or c.run == run] for every in (True, False)
            )
            admit(total)
            sets = {one.patients: one.charges for one in account.sets}
            sets[digests] = _with(sets.get(digests, ()), done, run)
            changed = Account(
                number=account.number + 1,
                previous=head.digest,
                sets=tuple(PatientSet(patients=who, charges=what) for who, what in sets.items()),
            )
            sealed = changed.model_copy(update={"seal": _seal(changed, head.key)})
            if (
                not self.head_file.exists()
            ):  # the key first: a book without one could not be told from a lost one
                self._write_head(head)
            write_json(self.account_file, sealed.model_dump(mode="json"))
            self._write_head(Head(key=head.key, number=sealed.number, digest=_digest(sealed)))
        return [*total, done], [*of_run, done]

    def _read(self) -> tuple[Account, Head]:
        """Return book and head as they must be; new ones where neither file is there."""
        if not self.head_file.exists() and not self.account_file.exists():
            return Account(), Head(key=os.urandom(32).hex(), number=0, digest=_digest(Account()))
        try:
            head = Head.model_validate(read_json(self.head_file))
            account = Account.model_validate(read_json(self.account_file)) if head.number else None
            if account is None:  # a crash between the first head and the first book
                account = Account()
                if self.account_file.exists():
                    account = Account.model_validate(read_json(self.account_file))
        except (OSError, ValueError, ValidationError) as error:
            raise self._unbelievable("is damaged, or one of its files is missing") from error
        sealed = account.number == 0 or hmac.compare_digest(account.seal, _seal(account, head.key))
        fits = (account.number, _digest(account)) == (head.number, head.digest)
        ahead = account.number == head.number + 1 and account.previous == head.digest
        if not sealed or not (fits or ahead):
            raise self._unbelievable("was changed, or is an older copy")
        return account, head if fits else Head(key=head.key, number=account.number, digest=_digest(account))

    def _write_head(self, head: Head) -> None:
        write_json(self.head_file, head.model_dump(mode="json"))
        self.head_file.chmod(0o600)

    def _digests(self, patients: Sequence[str], head: Head) -> tuple[str, ...]:
        key = bytes.fromhex(head.key)
        return tuple(
            sorted({_keyed(key, f"patient {name}".encode())[: 2 * _DIGEST_BYTES] for name in patients})
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FolderLock(self.folder)
        if not lock.acquire(LOCK_SECONDS):
            raise SpendingError(
                "another job is writing this site's book of privacy spending; ask again later."
            )
        try:
            yield
        finally:
            lock.release()

    def _unbelievable(self, what: str) -> SpendingError:
        error = SpendingError(
            f"this site's book of privacy spending {what}, so everything counts as spent and nothing is "
            "trained with differential privacy here. Put both files back from a copy of the same "
            "moment; only the hospital can decide to begin a new book."
        )
        error.add_note(f"The book is in {self.folder}.")
        return error


def _charges(account: Account, patients: Sequence[str]) -> list[Charge]:
    """Return the charges of all sets that share a patient with these."""
    ours = set(patients)
    return [charge for one in account.sets if ours & set(one.patients) for charge in one.charges]


def _with(charges: tuple[Charge, ...], done: Mechanism, run: str) -> tuple[Charge, ...]:
    """Return the charges and one more, as further steps of the last where that is of the same kind."""
    more = Charge(run=run, noise=done.noise, rate=done.rate, steps=done.steps)
    if charges and charges[-1].model_copy(update={"steps": done.steps}) == more:
        return (*charges[:-1], more.model_copy(update={"steps": charges[-1].steps + done.steps}))
    return (*charges, more)


def _content(account: Account) -> bytes:
    facts: dict[str, Any] = account.model_dump(mode="json", exclude={"seal"})
    return json.dumps(facts, sort_keys=True).encode()


def _digest(account: Account) -> str:
    return hashlib.sha256(_content(account)).hexdigest()


def _seal(account: Account, key: str) -> str:
    return _keyed(bytes.fromhex(key), _content(account))


def _keyed(key: bytes, data: bytes) -> str:
    return hmac.new(key, data, hashlib.sha256).hexdigest()
