# SPDX-License-Identifier: Apache-2.0
"""A guess of a cohort's settings, with the reasons that are written beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortGuess:
    """Format that the files of a folder seem to have.

    Attributes:
        format: a name of `settings.formats.FORMATS`.
        settings: further settings of the cohort, as site.yaml writes them; `root` is not among them.
        optional: settings that some methods need; site.yaml has them as comments, to be taken or not.
        reasons: key of these, dotted for a column, or `format` -> why it was guessed so.
        remarks: sentences for a person, of what the guess cannot know.
        sites: column -> its values, where a column seems to name hospitals.
    """

    format: str
    settings: dict[str, Any] = field(default_factory=dict)
    optional: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)
