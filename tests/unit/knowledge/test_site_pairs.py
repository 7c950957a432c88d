# SPDX-License-Identifier: Apache-2.0
"""Pairs of sites in waves: each once, nobody in two at a time, no more bytes than a server may hold."""

from __future__ import annotations

import pytest
from graphs import graph, key
from hypothesis import given
from hypothesis import strategies as st

from medflare.knowledge.private_intersection import (
    IntersectionClient,
    IntersectionServer,
    keyed_elements,
    message_bytes,
)
from medflare.knowledge.site_pairs import SitePair, pair_bytes, waves

SIZES = st.lists(st.integers(20, 100_000), max_size=14)


def named(sizes: list[int]) -> dict[str, int]:
    return {f"site-{number:02}": size for number, size in enumerate(sizes)}


@given(SIZES, st.integers(1, 10**8))
def test_every_pair_once_nobody_twice_in_a_wave_and_a_wave_within_its_bytes(
    sizes: list[int], memory: int
) -> None:
    sites = named(sizes)
    dealt = waves(sites, memory)
    pairs = [frozenset(pair) for wave in dealt for pair in wave]
    assert len(pairs) == len(set(pairs)) == len(sites) * (len(sites) - 1) // 2
    for wave in dealt:
        there = [site for pair in wave for site in pair]
        assert len(there) == len(set(there))
        held = sum(pair_bytes(sites[pair.asker], sites[pair.holder]) for pair in wave)
        assert held <= memory or len(wave) == 1
        assert all(sites[pair.asker] <= sites[pair.holder] for pair in wave)


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (1, 0), (2, 1), (3, 3), (6, 5), (20, 19)])
def test_waves_are_as_few_as_a_tournaments(count: int, expected: int) -> None:
    assert len(waves(named([50] * count))) == expected


def test_of_equal_graphs_the_first_name_asks() -> None:
    assert waves({"b": 30, "a": 30}) == [[SitePair("a", "b")]]
    assert waves({"b": 29, "a": 30}) == [[SitePair("b", "a")]]


def test_a_message_is_never_longer_than_counted() -> None:
    pytest.importorskip("private_set_intersection.python")
    for count in (20, 1000):
        items = keyed_elements(graph(0, count), key())
        asker, holder = IntersectionClient(items), IntersectionServer(items)
        request, setup = asker.request(), holder.setup(count)
        sent = [request, setup, holder.response(request)]
        assert all(35 * count <= len(message) <= message_bytes(count) for message in sent)
