# SPDX-License-Identifier: Apache-2.0
"""What leaves a site when a task fails: a code, and a text in which no patient and no path can appear.

The full trace stays in the site's own `worker.log`. Texts that may quote a site's files (its cohort, its
site.yaml) are withheld; texts about the job's settings and about tensors are sent as they are, because the
person who can correct them reads the server's log.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from medflare.core.errors import ConfigError, DataError, MedflareError, RunError, UpdateError
from medflare.egress.policy import PolicyError

SEE_LOG = "Details are in worker.log at the site."


class Code(IntEnum):
    """Codes of what can go wrong at a site; `docs` has a page with what to do for each."""

    CONFIG = 2
    DATA = 3
    UPDATE = 4
    RUN = 5
    SITE_SETTINGS = 20
    EGRESS = 21
    POLICY = 22
    WORKER_DIED = 30
    DEADLINE = 31
    ABORTED = 32
    UNEXPECTED = 40


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it passes from worker to executor to server."""

    code: Code
    text: str

    def __str__(self) -> str:
        return f"E{int(self.code)} {self.text}"

    def to_json(self) -> dict[str, Any]:
        """Return code and text in JSON types."""
        return {"code": int(self.code), "text": self.text}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Failure:
        """Return the failure that `to_json` wrote."""
        return cls(Code(int(data["code"])), str(data["text"]))


class TaskError(Exception):
    """A task failed; `failure` is what may leave the site about it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class SiteSettingsError(MedflareError):
    """The site's own site.yaml cannot be used; its text may quote the site's paths and stays there."""


class EgressError(MedflareError):
    """A reply holds something that was not declared before round 1."""


_CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (SiteSettingsError, Code.SITE_SETTINGS),
    (EgressError, Code.EGRESS),
    (PolicyError, Code.POLICY),
    (ConfigError, Code.CONFIG),
    (DataError, Code.DATA),
    (UpdateError, Code.UPDATE),
    (RunError, Code.RUN),
)
_WITHHELD = (Code.SITE_SETTINGS, Code.DATA)
"""Codes whose texts may quote the site's files and stay in its log."""


def failure_of(error: BaseException) -> Failure:
    """Return the failure that may leave the site for `error`.

    The package's own errors keep their text, except where it may quote the site's files. Of any other
    exception only its class and the place in the code are reported, never its message, which may quote data.
    """
    if isinstance(error, TaskError):
        return error.failure
    name = type(error).__name__
    for known, code in _CODES:
        if isinstance(error, known):
            return Failure(code, f"{name}: {SEE_LOG}" if code in _WITHHELD else f"{name}: {error}")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return Failure(Code.UNEXPECTED, f"{name}{place}. {SEE_LOG}")
