# SPDX-License-Identifier: Apache-2.0
"""Exact sizes of what two sites share, by private set intersection; and the distances they give."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from graphs import graph, key

from medflare.core.errors import ConfigError, UpdateError
from medflare.knowledge.divergence import distance_matrix
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.private_intersection import (
    IntersectionClient,
    IntersectionServer,
    exact_distances,
    fingerprint,
    keyed_elements,
    shared_size,
)
from medflare.knowledge.triples import jaccard

SITES = ["a", "b", "c"]
GRAPHS = {"a": graph(0, 100), "b": graph(60, 200), "c": graph(500, 550)}


@pytest.fixture
def psi() -> None:
    reason = "openmined.psi is not installed: it has wheels for few machines, and pins protobuf"
    pytest.importorskip("private_set_intersection.python", reason=reason)


@pytest.mark.usefixtures("psi")
def test_pairwise_sizes_give_the_exact_jaccard_distances() -> None:
    items = {site: keyed_elements(distances, key()) for site, distances in GRAPHS.items()}
    pairs = {
        (one, other): shared_size(IntersectionClient(items[one]), IntersectionServer(items[other]))
        for i, one in enumerate(SITES)
        for other in SITES[:i]
    }
    assert pairs == {("b", "a"): 40, ("c", "a"): 0, ("c", "b"): 0}
    distances = exact_distances({site: len(own) for site, own in GRAPHS.items()}, pairs, SITES)
    expected = [[1 - jaccard(GRAPHS[one], GRAPHS[other]) for other in SITES] for one in SITES]
    assert distances == pytest.approx(np.array(expected), abs=1e-12)
    sketched = distance_matrix({s: Sketcher(key()).sketch(g) for s, g in GRAPHS.items()}, SITES)
    assert np.abs(distances - sketched).max() < 0.05


@pytest.mark.usefixtures("psi")
def test_messages_hold_neither_triples_nor_their_digests() -> None:
    seen: list[bytes] = []

    def carry(message: bytes) -> bytes:
        seen.append(message)
        return message

    items = {site: keyed_elements(GRAPHS[site], key()) for site in "ab"}
    shared_size(IntersectionClient(items["a"]), IntersectionServer(items["b"]), carry)
    assert [len(message) > 30 * n for message, n in zip(seen, (140, 100, 100), strict=True)] == [True] * 3
    words = {word.encode() for own in items.values() for word in own}
    words |= {bytes.fromhex(word.decode()) for word in words}
    words |= {part.encode() for triple in GRAPHS["a"] for part in triple}
    assert not any(word in message for word in words for message in seen)


@pytest.mark.usefixtures("psi")
def test_the_same_graph_gives_other_messages_in_every_exchange() -> None:
    items = keyed_elements(GRAPHS["a"], key())
    assert IntersectionClient(items).request() != IntersectionClient(items).request()
    assert IntersectionServer(items).setup(50) != IntersectionServer(items).setup(50)


@pytest.mark.usefixtures("psi")
def test_a_holder_answers_what_was_agreed_and_once() -> None:
    items = keyed_elements(GRAPHS["a"], key())
    holder, asker = IntersectionServer(items), IntersectionClient(items)
    holder.setup(99)
    with pytest.raises(UpdateError, match="request of 100 elements where 99 were agreed"):
        holder.response(asker.request())
    holder.setup(100)
    holder.response(asker.request())
    with pytest.raises(UpdateError, match="where 0 were agreed"):
        holder.response(asker.request())


@pytest.mark.usefixtures("psi")
def test_a_request_for_few_elements_is_not_answered() -> None:
    holder = IntersectionServer(keyed_elements(GRAPHS["a"], key()))
    holder.setup(1)
    with pytest.raises(UpdateError, match="it could ask for single triples"):
        holder.response(IntersectionClient(["one"], least=1).request())
    with pytest.raises(ConfigError, match="the graph has 19 triples"):
        IntersectionServer(keyed_elements(graph(0, 19), key()))


def changed(message: bytes, kind: str, change: str) -> bytes:
    """A message of the package with its first two elements alike, its first one made up, or one too many."""
    import private_set_intersection.python as package

    result = getattr(package, kind)()
    result.ParseFromString(message)
    held = result.raw.encrypted_elements if kind == "ServerSetup" else result.encrypted_elements
    if change == "twice":
        held[1] = held[0]
    elif change == "made up":
        held[0] = b"\x02" + b"\xff" * 32
    else:
        held.append(bytes(33))
    return bytes(result.SerializeToString())


@pytest.mark.usefixtures("psi")
@pytest.mark.parametrize(
    ("change", "message"),
    [("twice", "holds an element twice"), ("made up", "no encrypted ones"), ("more", "of 101 elements")],
)
def test_a_request_or_response_of_other_elements_is_not_used(change: str, message: str) -> None:
    items = keyed_elements(GRAPHS["a"], key())
    asker, holder = IntersectionClient(items), IntersectionServer(items)
    setup = holder.setup(100)
    with pytest.raises(UpdateError, match=message):
        holder.response(changed(asker.request(), "Request", change))
    answering = IntersectionServer(items)
    setup, request = answering.setup(100), asker.request()
    response = answering.response(request)
    with pytest.raises(UpdateError, match=message):
        asker.shared(setup, changed(response, "Response", change))
    assert asker.shared(setup, response) == 100


@pytest.mark.usefixtures("psi")
def test_a_set_up_of_other_elements_than_agreed_is_not_used() -> None:
    asker, holder = (
        IntersectionClient(keyed_elements(GRAPHS["a"], key())),
        IntersectionServer(keyed_elements(GRAPHS["b"], key())),
    )
    setup, response = holder.setup(100), holder.response(asker.request())
    assert asker.shared(setup, response, 140) == 40
    with pytest.raises(UpdateError, match="a set-up of 140 elements where 139 were agreed"):
        asker.shared(setup, response, 139)
    with pytest.raises(UpdateError, match="twice"):
        asker.shared(changed(setup, "ServerSetup", "twice"), response)
    few = IntersectionServer(keyed_elements(graph(0, 5), key()), least=1)
    setup, response = few.setup(100), few.response(asker.request())
    with pytest.raises(UpdateError, match="20 are the least: it could ask for single triples"):
        asker.shared(setup, response, 5)


@pytest.mark.usefixtures("psi")
def test_a_message_that_is_none_is_refused() -> None:
    holder, asker = (
        kind(keyed_elements(GRAPHS["a"], key())) for kind in (IntersectionServer, IntersectionClient)
    )
    with pytest.raises(UpdateError, match="9 bytes are no request"):
        holder.response(b"\xffnonsense")
    with pytest.raises(UpdateError, match="are no set-up"):
        asker.shared(b"\xffnonsense", b"")


def test_elements_of_another_key_or_context_have_another_fingerprint() -> None:
    assert fingerprint(key()) == fingerprint(key())
    assert len({fingerprint(key()), fingerprint(key(8)), fingerprint(key(context="other"))}) == 3


def test_digests_depend_on_the_key_and_not_on_the_order() -> None:
    elements = keyed_elements(GRAPHS["a"], key())
    assert elements == keyed_elements(dict(reversed(GRAPHS["a"].items())), key())
    assert not set(elements) & set(keyed_elements(GRAPHS["a"], key(8)))
    assert len(set(elements)) == 100


def test_distances_of_empty_and_of_uncompared_graphs() -> None:
    distances = exact_distances({"a": 10, "b": 30, "c": 0, "d": 5}, {("a", "b"): 8}, ["a", "b", "c", "d"])
    assert distances[0, 1] == distances[1, 0] == pytest.approx(1 - 8 / 32)
    assert distances[2].tolist() == [1, 1, 0, 1]
    compared = [distances[0, 1], *[1.0] * 3]
    assert distances[0, 3] == pytest.approx(np.mean(compared))


def test_a_site_that_told_no_size_is_as_far_as_is_typical() -> None:
    distances = exact_distances({"a": 10, "b": 30}, {("b", "a"): 8}, ["a", "b", "c"])
    assert distances[2].tolist() == pytest.approx([1 - 8 / 32, 1 - 8 / 32, 0])
    assert exact_distances({}, {}, ["a", "b"]).tolist() == [[0, 1], [1, 0]]


def test_more_shared_than_there_is_is_refused() -> None:
    with pytest.raises(UpdateError, match="'b' and 'a' are said to share 11 triples, and have 30 and 10"):
        exact_distances({"a": 10, "b": 30}, {("a", "b"): 11}, ["a", "b"])


def test_without_the_package_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("private_set_intersection")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "private_set_intersection", None)
    with pytest.raises(ConfigError, match=r"medflare\[psi\].*--no-deps"):
        IntersectionClient(keyed_elements(GRAPHS["a"], key()))
