# SPDX-License-Identifier: Apache-2.0
"""New weights from a seed: the same numbers whatever else draws, and everybody else's as before."""

from __future__ import annotations

import threading

import torch

from medflare.core.seeds import seeded


def test_a_seed_gives_its_numbers_and_leaves_those_of_others_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(6)
    torch.manual_seed(5)
    first = torch.rand(3)
    with seeded(1):
        one = torch.rand(3)
        with seeded(2):
            two = torch.rand(3)
        more = torch.rand(3)
    assert torch.equal(torch.cat([first, torch.rand(3)]), expected)
    torch.manual_seed(1)
    assert torch.equal(torch.cat([one, more]), torch.rand(6))
    torch.manual_seed(2)
    assert torch.equal(two, torch.rand(3))


def test_sites_that_are_threads_do_not_draw_each_others_numbers() -> None:
    found: list[torch.Tensor] = []
    together = threading.Barrier(4)

    def make() -> None:
        together.wait()
        for _ in range(30):
            with seeded(3):
                found.append(torch.cat([torch.rand(2) for _ in range(20)]))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120
    assert all(torch.equal(one, found[0]) for one in found)
