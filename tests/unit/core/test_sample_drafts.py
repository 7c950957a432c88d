# SPDX-License-Identifier: Apache-2.0
"""Samples of what a model writes reach whoever listens in the same thread, and nobody else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from medflare.core.sample_drafts import LONGEST, keeping_drafts, offer_drafts


def test_the_first_drafts_are_kept_and_cut() -> None:
    with keeping_drafts(2) as drafts:
        offer_drafts(["a"], ["said"], ["w" * (LONGEST + 1)])
        offer_drafts(["b", "c"], ["x", "y"], ["z", "z"])
    assert [(draft.record, len(draft.written)) for draft in drafts] == [("a", LONGEST), ("b", 1)]


def test_nothing_is_kept_outside_and_of_another_thread() -> None:
    with ThreadPoolExecutor(1) as other, keeping_drafts(2) as drafts:
        other.submit(offer_drafts, ["a"], ["b"], ["c"]).result()
    offer_drafts(["a"], ["b"], ["c"])
    assert drafts == []
