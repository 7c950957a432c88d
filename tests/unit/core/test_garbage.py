# SPDX-License-Identifier: Apache-2.0
"""Garbage collection leaves out what was there before, and only inside."""

from __future__ import annotations

import gc

import pytest

from medflare.core.garbage import frozen_garbage


def test_what_was_there_is_frozen_inside_and_given_back_afterwards() -> None:
    before = gc.get_freeze_count()
    with frozen_garbage():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0


def test_it_is_given_back_after_an_error_too() -> None:
    def fail() -> None:
        with frozen_garbage():
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert gc.get_freeze_count() == 0
