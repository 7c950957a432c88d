# SPDX-License-Identifier: Apache-2.0
"""Signatures of knowledge graphs: what they estimate and how well, what they hide, who may compare them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from graphs import graph, key
from hypothesis import given
from hypothesis import strategies as st

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.sketch import Sketch
from medflare.knowledge.divergence import distance_matrix, drift, due_for_sketch
from medflare.knowledge.minhash import HASHES, Sketcher
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.sketches import (
    check_comparable,
    error_bound,
    estimated_jaccard,
    jaccard_interval,
    sites_outside_majority,
    standard_error,
)
from medflare.knowledge.triples import (
    Triple,
    canonical,
    graph_of,
    jaccard,
    serialised,
    weighted_jaccard,
)

FIRST_SET = bytes.fromhex("9f41b5ff4ba0a91b6cfe544da09b259e")
FIRST_WEIGHTED = bytes.fromhex("be20873e9447b308d38fe38f0d48fc51")
"""Fingerprints of key() for 64 hashes under version 1."""

# ---- triples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("  Myocardial\n Infarction. ", "myocardial infarction"),
        ("MÉNIÈRE", "meniere"),
        ("Me\u0301nie\u0300re", "meniere"),
        ("ﬁbrosis", "fibrosis"),
        ("Straße", "strasse"),
        ("(HIV‐1)", "hiv‐1"),
        ("दर्द", "दर्द"),
        ("...", ""),
    ],
)
def test_names_have_one_spelling(written: str, expected: str) -> None:
    assert canonical(written) == expected
    assert canonical(expected) == expected


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
def test_different_triples_have_different_bytes(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (serialised(Triple(*one)) == serialised(Triple(*other))) == (one == other)


def test_a_graph_holds_each_triple_once_with_its_best_confidence() -> None:
    result = graph_of(
        [(Triple("Flu", "has symptom", "Fever"), 0.4), (Triple("flu ", "has symptom", "FEVER"), 0.9)]
    )
    assert result == {Triple("flu", "has symptom", "fever"): 0.9}
    assert graph_of([(Triple("flu", "is", "Flu"), 1.0), (Triple("flu", "", "fever"), 1.0)]) == {}
    assert graph_of([(Triple("flu", "causes", "fever"), 0.3)], least=0.5) == {}
    with pytest.raises(ValueError, match=r"confidence .* is 1\.5"):
        graph_of([(Triple("flu", "causes", "fever"), 1.5)])


# ---- accuracy ----------------------------------------------------------------------------------------------


def test_1024_hashes_err_by_0_016_at_most() -> None:
    assert standard_error(1024) == pytest.approx(0.015625)
    assert error_bound(1024) == pytest.approx(0.04244, abs=1e-5)
    assert error_bound(1024, 0.99) > error_bound(1024)


@pytest.mark.parametrize("shared", [0, 30, 150, 270, 300])
def test_the_estimates_of_many_keys_scatter_as_the_standard_error_says(shared: int) -> None:
    one, other = graph(0, 300), graph(300 - shared, 600 - shared)
    true = jaccard(one, other)
    errors = []
    for byte in range(40):
        sketcher = Sketcher(key(byte), k=256)
        errors.append(estimated_jaccard(sketcher.sketch(one), sketcher.sketch(other)) - true)
    expected = standard_error(256, true)
    assert abs(np.mean(errors)) <= 4 * expected / np.sqrt(40) + 1e-12
    assert np.std(errors) <= 1.6 * expected + 1e-12
    assert max(map(abs, errors)) <= error_bound(256, 1 - 1e-6)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    one, other = graph(0, 200), graph(120, 320)
    inside = 0
    for byte in range(60):
        sketcher = Sketcher(key(byte), k=128)
        low, high = jaccard_interval(estimated_jaccard(sketcher.sketch(one), sketcher.sketch(other)), 128)
        inside += low <= jaccard(one, other) <= high
    assert inside >= 52
    assert jaccard_interval(0.0, 1024)[0] == 0.0
    assert jaccard_interval(1.0, 1024)[1] == 1.0


def test_a_weighted_signature_estimates_the_weighted_jaccard() -> None:
    one = {t: 0.2 + 0.8 * (i % 5) / 5 for i, t in enumerate(graph(0, 120))}
    other = {t: 0.1 + 0.9 * (i % 3) / 3 for i, t in enumerate(graph(40, 160))}
    estimates = []
    for byte in range(24):
        sketcher = Sketcher(key(byte), k=256, kind="weighted")
        estimates.append(estimated_jaccard(sketcher.sketch(one), sketcher.sketch(other)))
    true = weighted_jaccard(one, other)
    assert np.mean(estimates) == pytest.approx(true, abs=4 * standard_error(256 * 24, true))
    assert abs(true - jaccard(one, other)) > 0.1


def test_with_all_confidences_one_the_weighted_jaccard_is_the_plain_one() -> None:
    one, other = graph(0, 100), graph(50, 150)
    assert weighted_jaccard(one, other) == pytest.approx(jaccard(one, other)) == pytest.approx(1 / 3)


def test_a_weighted_signature_depends_on_confidences_and_a_plain_one_does_not() -> None:
    sure, doubtful = graph(0, 100), graph(0, 100, 0.5)
    plain, weighted = Sketcher(key(), 256), Sketcher(key(), 256, "weighted")
    assert estimated_jaccard(plain.sketch(sure), plain.sketch(doubtful)) == 1.0
    assert estimated_jaccard(weighted.sketch(sure), weighted.sketch(doubtful)) == pytest.approx(0.5, abs=0.12)


def test_hashes_are_aes_of_the_digest_and_the_number() -> None:
    """One triple, computed block by block: the batch is nothing but that."""
    made, one = Sketcher(key(), 8), graph(3, 4)
    secret = key()
    digest = hashlib.blake2b(
        serialised(next(iter(one))), key=secret.derive("digests of set 8"), digest_size=16
    )
    expected = []
    for number in range(4):
        block = bytearray(digest.digest())
        block[8] ^= number
        aes = Cipher(algorithms.AES(secret.derive("hashes of set 8")), modes.ECB()).encryptor()
        out = aes.update(bytes(block))
        expected += [int.from_bytes(out[:4], "little"), int.from_bytes(out[8:12], "little")]
    assert made.sketch(one).values.tolist() == expected


def test_the_order_of_triples_and_the_size_of_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = graph(0, 57)
    turned = dict(reversed(given_.items()))
    for kind in ("set", "weighted"):
        expected = Sketcher(key(), 64, kind).sketch(given_)
        with monkeypatch.context() as small:
            small.setattr("medflare.knowledge.minhash.PIECE", 5000)
            assert np.array_equal(Sketcher(key(), 64, kind).sketch(turned).values, expected.values)


# ---- what travels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["set", "weighted"])
@pytest.mark.parametrize("size", [0, 1, 500])
def test_a_signature_has_the_same_few_bytes_whatever_the_graph(kind: str, size: int) -> None:
    sketch = Sketcher(key(), kind=kind).sketch(graph(0, size))
    assert len(sketch.to_bytes()) == 26 + 4 * HASHES <= 8192
    again = Sketch.from_bytes(sketch.to_bytes(), "a")
    assert np.array_equal(again.values, sketch.values)
    assert (again.fingerprint, again.kind, again.empty) == (sketch.fingerprint, kind, size == 0)


def test_a_signature_does_not_tell_how_many_triples_there_are() -> None:
    """Minima themselves shrink with the size of the graph; their low halves are uniform."""
    for size in (1, 4000):
        values = Sketcher(key(), 1024).sketch(graph(0, size)).values / 2**32
        assert np.mean(values) == pytest.approx(0.5, abs=4 / np.sqrt(12 * 1024))


@pytest.mark.parametrize("kind", ["set", "weighted"])
@pytest.mark.parametrize("size", [1, 6, 50, 2000])
def test_values_differ_at_all_positions_whatever_the_size_of_the_graph(kind: Any, size: int) -> None:
    """A value that came twice would tell that one triple won twice, and their number how many there are."""
    sure = {triple: 0.2 + 0.8 * (i % 5) / 5 for i, triple in enumerate(graph(0, size))}
    assert len(set(Sketcher(key(), 1024, kind).sketch(sure).values.tolist())) >= 1023


def test_signatures_of_the_version_that_told_sizes_are_not_compared_with_new_ones() -> None:
    """Those are the weighted ones of version 1; plain ones never told sizes and are as they were."""
    assert key().fingerprint("set", 64) == FIRST_SET
    weighted = Sketcher(key(), 64, "weighted").sketch(graph(0, 9))
    old = Sketch(weighted.values, FIRST_WEIGHTED, "weighted")
    with pytest.raises(UpdateError, match="sketches of 'b'"):
        check_comparable({"a": weighted, "b": old, "c": weighted})


@pytest.mark.parametrize("damage", [b"", b"MFS1", b"\x00" * 4122])
def test_bytes_that_are_no_sketch_are_refused_with_the_sites_name(damage: bytes) -> None:
    with pytest.raises(UpdateError, match="site 'b' sent"):
        Sketch.from_bytes(damage, "b")
    data = Sketcher(key(), 8).sketch(graph(0, 3)).to_bytes()
    with pytest.raises(UpdateError, match="no sketch of this version"):
        Sketch.from_bytes(data + b"\x00", "b")


# ---- keys --------------------------------------------------------------------------------------------------


def test_signatures_of_other_keys_contexts_kinds_or_lengths_are_refused_and_named() -> None:
    good = {site: Sketcher(key(), 64).sketch(graph(0, 9)) for site in "abc"}
    others = [
        Sketcher(key(8), 64),
        Sketcher(key(context="another"), 64),
        Sketcher(key(), 128),
        Sketcher(key(), 64, "weighted"),
    ]
    for other in others:
        with pytest.raises(UpdateError, match="sketches of 'd'"):
            distance_matrix({**good, "d": other.sketch(graph(0, 9))}, ["a", "b", "c", "d"])


def test_the_same_graph_under_another_key_shares_nothing() -> None:
    one, other = (Sketcher(key(byte), 1024).sketch(graph(0, 50)).values for byte in (1, 2))
    assert np.mean(one == other) == 0.0


def test_a_secret_is_long_and_read_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 8 bytes; expected 32 or more"):
        SketchKey(b"password", "project")
    file = tmp_path / "sketch.key"
    file.write_text(SketchKey.new_secret().hex())
    assert SketchKey.read(file, "p").fingerprint("set", 8) == SketchKey.read(file, "p").fingerprint("set", 8)
    file.write_text("no digits")
    with pytest.raises(ConfigError, match=r"sketch\.key: cannot be read"):
        SketchKey.read(file, "p")
    file.write_text("00ff")
    with pytest.raises(ConfigError, match=r"sketch\.key: the sketch key has 2 bytes"):
        SketchKey.read(file, "p")


def test_a_vocabulary_is_known_by_its_contents_order_and_align_under_the_key(tmp_path: Path) -> None:
    diseases, symptoms, again = (tmp_path / name for name in ("d.obo", "s.tsv", "other_name.obo"))
    diseases.write_text("id: D:1")
    symptoms.write_text("id: S:1")
    again.write_text("id: D:1")
    digest = key().vocabulary_digest([diseases, symptoms], True)
    assert len(bytes.fromhex(digest)) == 8
    assert key().vocabulary_digest([again, symptoms], True) == digest
    unlike = [
        key().vocabulary_digest([symptoms, diseases], True),
        key().vocabulary_digest([diseases], True),
        key().vocabulary_digest([], True),
        key().vocabulary_digest([diseases, symptoms], False),
        key(8).vocabulary_digest([diseases, symptoms], True),
        key(context="another").vocabulary_digest([diseases, symptoms], True),
        hashlib.sha256(b"id: D:1id: S:1").hexdigest()[:16],
    ]
    again.write_text("id: D:2")
    unlike.append(key().vocabulary_digest([again, symptoms], True))
    assert len({digest, *unlike}) == 9
    with pytest.raises(ConfigError, match=r"gone\.obo: the vocabulary cannot be read"):
        key().vocabulary_digest([tmp_path / "gone.obo"], True)


def test_sites_are_named_whose_vocabulary_is_not_that_of_more_than_half() -> None:
    assert sites_outside_majority({"a": "x", "b": "x", "c": "y"}) == ["c"]
    assert sites_outside_majority({"a": "x", "b": "y"}) == ["a", "b"]
    assert (
        sites_outside_majority({"a": "x", "b": "x"})
        == sites_outside_majority({"a": "x"})
        == sites_outside_majority({})
        == []
    )


@pytest.mark.parametrize("k", [0, 7, 4096])
def test_a_k_that_does_not_fit_is_refused(k: int) -> None:
    with pytest.raises(ConfigError, match=f"k is {k}"):
        Sketcher(key(), k)


# ---- distances ---------------------------------------------------------------------------------------------


def test_the_matrix_of_distances_is_a_metric_of_sketches() -> None:
    sketcher = Sketcher(key(), 256)
    sketches = {site: sketcher.sketch(graph(25 * i, 25 * i + 100)) for i, site in enumerate("abcd")}
    D = distance_matrix(sketches, list("abcd"))
    assert np.array_equal(D, D.T)
    assert np.all(np.diag(D) == 0)
    assert D[0, 1] == pytest.approx(0.4, abs=4 * standard_error(256))
    centre = np.eye(4) - 0.25
    assert np.linalg.eigvalsh(centre @ D @ centre)[-1] <= 1e-12


def test_an_empty_graph_is_as_far_as_can_be_from_all_but_itself() -> None:
    sketcher = Sketcher(key(), 64)
    sketches = {"a": sketcher.sketch({}), "b": sketcher.sketch({}), "c": sketcher.sketch(graph(0, 5))}
    assert distance_matrix(sketches, ["a", "b", "c"]).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert jaccard({}, {}) == weighted_jaccard({}, {}) == 0.0


def test_a_site_without_a_sketch_is_at_the_typical_distance() -> None:
    sketcher = Sketcher(key(), 256)
    sketches = {"a": sketcher.sketch(graph(0, 100)), "c": sketcher.sketch(graph(50, 150))}
    D = distance_matrix(sketches, ["a", "b", "c"])
    assert D[0, 1] == D[1, 2] == D[0, 2]
    assert np.all(distance_matrix({}, ["a", "b"]) == [[0, 1], [1, 0]])


def test_growth_makes_a_new_sketch_due_and_drift_says_how_much_it_changed() -> None:
    assert not due_for_sketch(100, 110, growth=0.1)
    assert due_for_sketch(100, 111, growth=0.1)
    assert due_for_sketch(100, 80, growth=0.1)
    assert due_for_sketch(0, 1, growth=0.1)
    sketcher = Sketcher(key(), 512)
    assert drift(sketcher.sketch(graph(0, 50)), sketcher.sketch(graph(0, 50))) == 0.0
    moved = drift(sketcher.sketch(graph(0, 50)), sketcher.sketch(graph(0, 100)))
    assert moved == pytest.approx(0.5, abs=4 * standard_error(512))
