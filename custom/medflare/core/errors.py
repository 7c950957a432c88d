# SPDX-License-Identifier: Apache-2.0
"""Errors that speak to a person in a hospital."""

from __future__ import annotations


class MedflareError(Exception):
    """Base of errors that a user can mend: the message says what was found, expected, and what to do next.

    Attributes:
        exit_code: of the command that ends with this error (docs/reference/errors.md).
    """

    exit_code = 1


class ConfigError(MedflareError, ValueError):
    """One or more settings are wrong; the message lists all of them.

    Attributes:
        without_values: the message without the values that were found; empty where it quotes none.
    """

    exit_code = 2
    without_values = ""


class DataError(MedflareError, ValueError):
    """The cohort cannot be used: files missing, wrong columns, or too many studies skipped."""

    exit_code = 3


class UpdateError(MedflareError, ValueError):
    """Shared tensors do not match what was declared before round 1."""

    exit_code = 4


class RunError(MedflareError, RuntimeError):
    """A run did not produce what it should have."""

    exit_code = 5


class OperatingSystemError(MedflareError):
    """The operating system refused a file: no permission, no space, not there."""

    exit_code = 6
