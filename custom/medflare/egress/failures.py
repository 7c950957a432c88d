# SPDX-License-Identifier: Apache-2.0
"""Failures as they leave a site: a code, and a text in which no patient and no path can appear.

The full trace stays in the site's own `worker.log`. Texts that may quote a site's files (its cohort, its
site.yaml) are withheld; texts about the job's settings and about tensors are sent as they are, because the
person who can correct them reads the server's log.
"""

from __future__ import annotations

import re
import traceback
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from medflare.core.errors import ConfigError, DataError, MedflareError, RunError, UpdateError
from medflare.egress.policy import PolicyError
from medflare.wire.disk_space import is_disk_broken, is_disk_full
from medflare.wire.memory import is_out_of_memory

SEE_LOG = "Details are in worker.log at the site."
DISK_FULL = "the disk of the site is full. Free some space there; it takes part again in the next round."
OUT_OF_MEMORY = (
    "the site has too little memory for this task. Smaller batches (`optimiser.batch`, `eval_batch`) or a "
    "smaller model need less; it takes part again in the next round."
)
DISK_BROKEN = (
    "the disk of the site cannot be used: it is read-only, or fails. A disk with errors is often mounted "
    "read-only; the site takes part again once it can write."
)
MOST_TEXT = 2000
"""Most characters of a failure's text; what a hostile site writes stands in records, logs and pages."""
_TERMINAL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
"""Terminal escapes: control sequences, titles of the window, and the two-character ones."""


class FailureCode(IntEnum):
    """Codes of what can go wrong at a site; `docs` has a page with what to do for each."""

    CONFIG = 2
    DATA = 3
    UPDATE = 4
    RUN = 5
    SITE_SETTINGS = 20
    EGRESS = 21
    POLICY = 22
    MESSAGE = 23
    WORKER_DIED = 30
    DEADLINE = 31
    ABORTED = 32
    DISK_FULL = 33
    OUT_OF_MEMORY = 34
    DISK_BROKEN = 35
    UNEXPECTED = 40


_NUMBERS = frozenset(int(code) for code in FailureCode)


def clean_text(text: str, most: int = MOST_TEXT) -> str:
    """Return a text from another party as it may stand in a log, a record or a page.

    Terminal escapes, control characters, text direction marks and lone surrogates are taken out; line breaks
    stay, as lists of wrong settings have them. What is longer than `most` characters is cut.
    """
    kept, more = text[: 4 * most], len(text) > 4 * most  # of megabytes nothing further is looked at
    kept = _TERMINAL.sub("", kept)
    kept = "".join(c for c in kept if c == "\n" or unicodedata.category(c) not in _UNPRINTABLE)
    if more or len(kept) > most:
        return f"{kept[:most]} [cut: {len(text):,} characters]"
    return kept


_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it passes from worker to executor to server."""

    code: FailureCode
    text: str

    def __str__(self) -> str:
        return f"E{int(self.code)} {self.text}"

    def to_json(self) -> dict[str, Any]:
        """Return code and text in JSON types, the text as `clean_text` leaves it."""
        return {"code": int(self.code), "text": clean_text(self.text)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """Return the failure of a message, whatever the message says; never raises.

        A number that this version does not know, as a newer version at one site may send, is UNEXPECTED.
        The text is cut and cleaned by `clean_text`.
        """
        number, text = data.get("code"), data.get("text")
        words = clean_text(text) if isinstance(text, str) else ""
        if isinstance(number, int) and number in _NUMBERS:
            return cls(FailureCode(number), words)
        unknown = f"E{number}" if isinstance(number, int) and abs(number) < 10**6 else "no number"
        return cls(
            FailureCode.UNEXPECTED, f"the site reports {unknown}, which this version does not know. {words}"
        )


class TaskError(Exception):
    """A task failed; `failure` is what may leave the site about it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class SiteSettingsError(MedflareError):
    """The site's own site.yaml cannot be used; its text may quote the site's paths and stays there."""


class EgressError(MedflareError):
    """A reply holds something that was not declared before round 1, or would be a second one of a round."""


class MessageError(MedflareError):
    """A message is not what the protocol allows; the text says what was found and what was expected."""


_CODES: tuple[tuple[type[BaseException], FailureCode], ...] = (
    (SiteSettingsError, FailureCode.SITE_SETTINGS),
    (EgressError, FailureCode.EGRESS),
    (PolicyError, FailureCode.POLICY),
    (MessageError, FailureCode.MESSAGE),
    (ConfigError, FailureCode.CONFIG),
    (DataError, FailureCode.DATA),
    (UpdateError, FailureCode.UPDATE),
    (RunError, FailureCode.RUN),
)
_WITHHELD = (FailureCode.SITE_SETTINGS, FailureCode.DATA)
"""Codes whose texts may quote the site's files and stay in its log."""


_QUOTED_PATH = re.compile(r"""(['"`])(?:~?[\\/]|~|[A-Za-z]:[\\/])[^'"`\n]*\1""")
_BARE_PATH = re.compile(r"""(?<![\w.:/\\])(?:~?/|[A-Za-z]:\\|\\\\)[^\s'"`,;()<>|]*[^\s'"`,;()<>|.:]""")
PATH = "[path]"


def without_paths(text: str) -> str:
    """Return a text in which every absolute path is replaced: a path names users, projects and patients."""
    return _BARE_PATH.sub(PATH, _QUOTED_PATH.sub(lambda match: f"{match[1]}{PATH}{match[1]}", text))


def _public_text(error: BaseException) -> str:
    """Return an error's text as it may leave a site."""
    if isinstance(error, ConfigError) and error.without_values:
        return error.without_values
    return str(error)


def failure_of(error: BaseException) -> Failure:
    """Return the failure that may leave the site for `error`.

    The package's own errors keep their text, except where it may quote the site's files; it names settings
    without their values, and no path. Of any other exception only its class and the place in the code are
    reported, never its message, which may quote data.
    """
    if isinstance(error, TaskError):
        return error.failure
    if is_disk_full(error):
        return Failure(FailureCode.DISK_FULL, DISK_FULL)
    if is_disk_broken(error):
        return Failure(FailureCode.DISK_BROKEN, DISK_BROKEN)
    if is_out_of_memory(error):
        return Failure(FailureCode.OUT_OF_MEMORY, OUT_OF_MEMORY)
    name = type(error).__name__
    for known, code in _CODES:
        if isinstance(error, known):
            text = SEE_LOG if code in _WITHHELD else without_paths(_public_text(error))
            return Failure(code, f"{name}: {text}")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return Failure(FailureCode.UNEXPECTED, f"{name}{place}. {SEE_LOG}")
