# SPDX-License-Identifier: Apache-2.0
"""Compression: what it costs in accuracy, what it saves in bytes, and what a receiver refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.core.errors import UpdateError
from medflare.core.tensors import SharedSpec, State
from medflare.wire.compression import (
    BLOCK,
    CODECS,
    SCALE,
    ErrorFeedback,
    compress,
    decompress,
    initial_codec,
    message_bytes,
)
from medflare.wire.digest import byte_count

QUANTISED = [kind for kind, codec in CODECS.items() if codec.bits is not None]
WORST = {"int8": 1 / 254, "int4": 0.152}
"""Largest error of a value, in units of its block's scale."""


def spec_of(state: State) -> SharedSpec:
    return {name: (tuple(value.shape), value.dtype) for name, value in state.items()}


def lora_spec(layers: int, hidden: int, kv: int, ffn: int, rank: int = 16) -> SharedSpec:
    """Names and shapes of LoRA pairs on all seven projections of a Llama."""
    projections = {
        **dict.fromkeys(("q_proj", "o_proj"), (hidden, hidden)),
        **dict.fromkeys(("k_proj", "v_proj"), (hidden, kv)),
        **dict.fromkeys(("gate_proj", "up_proj"), (hidden, ffn)),
        "down_proj": (ffn, hidden),
    }
    spec: SharedSpec = {}
    for layer in range(layers):
        for name, (inside, outside) in projections.items():
            spec[f"adapter.layers.{layer}.{name}.lora_A.weight"] = ((rank, inside), torch.float32)
            spec[f"adapter.layers.{layer}.{name}.lora_B.weight"] = ((outside, rank), torch.float32)
    return spec


LLAMA_8B = lora_spec(layers=32, hidden=4096, kv=1024, ffn=14336)
LLAMA_1B = lora_spec(layers=16, hidden=2048, kv=512, ffn=8192)


# ---- accuracy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QUANTISED)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    exponent=st.integers(-12, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_no_value_is_off_by_more_than_its_blocks_bound(
    kind: str, rows: int, columns: int, exponent: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(rows, columns, generator=generator) * 10.0**exponent
    sent = compress({"w": value}, kind)
    back = decompress(sent)["w"]
    assert (back.shape, back.dtype) == (value.shape, torch.float32)
    scales = sent[f"{SCALE}w"].float().repeat_interleave(BLOCK)[: value.numel()].view_as(value)
    assert (scales >= value.abs()).all()
    assert ((back - value).abs() <= scales * WORST[kind] * (1 + 1e-4)).all()


@pytest.mark.parametrize(("kind", "most"), [("int8", 5.5e-5), ("int4", 0.0090)])
def test_squared_error_on_gaussian_values(kind: str, most: float) -> None:
    value = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    error = decompress(compress({"w": value}, kind))["w"] - value
    assert error.square().mean() < most * value.square().mean()


def test_zero_stays_zero_and_absmax_of_a_power_of_two_is_exact() -> None:
    value = torch.zeros(2, BLOCK)
    value[1, 3] = -0.25
    for kind in QUANTISED:
        assert torch.equal(decompress(compress({"w": value}, kind))["w"], value)


@pytest.mark.parametrize("kind", QUANTISED)
def test_vectors_travel_in_bf16_and_sums_totals_and_integers_as_they_are(kind: str) -> None:
    state = {
        "bias": torch.tensor([0.3, 0.7]),
        "running_var": torch.tensor([1e-9, 1e3]),
        "sum:count": torch.randn(3, 3),
        "total:count": torch.randn(3, 3),
        "steps": torch.tensor([[7, 2**40]]),
    }
    sent = compress(state, kind)
    assert set(sent) == set(state)
    assert sent["bias"].dtype == sent["running_var"].dtype == torch.bfloat16
    assert sent["running_var"][0] > 0
    for name in ("sum:count", "total:count", "steps"):
        assert torch.equal(sent[name], state[name])


def test_uncompressed_tensors_are_copies() -> None:
    state = {"w": torch.ones(2, 2)}
    compress(state, "float32")["w"].zero_()
    assert state["w"].sum() == 4


# ---- bytes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_bytes_are_foreseen_exactly(kind: str) -> None:
    state = {"a": torch.randn(33, 7), "b": torch.randn(5), "n": torch.tensor(3), "e": torch.zeros(2, 0)}
    assert message_bytes(spec_of(state), kind) == byte_count(compress(state, kind))


@pytest.mark.parametrize(
    ("kind", "share"),
    [("float32", 1), ("bfloat16", 1 / 2), ("int8", 1 / 4 + 1 / 128), ("int4", 1 / 8 + 1 / 128)],
)
def test_share_of_fp32_bytes_scales_included(kind: str, share: float) -> None:
    assert message_bytes(LLAMA_8B, kind) == share * message_bytes(LLAMA_8B, "float32")


def test_parameter_counts_of_the_paper() -> None:
    counts = [message_bytes(spec, "float32") // 4 for spec in (LLAMA_8B, LLAMA_1B)]
    assert counts == [41_943_040, 11_272_192]


@pytest.mark.parametrize(
    ("spec", "sites", "total"),
    [
        (LLAMA_8B, 2, 1.25 * 2**30),
        (LLAMA_8B, 3, 1.875 * 2**30),
        (LLAMA_1B, 2, 344 * 2**20),
        (LLAMA_1B, 3, 516 * 2**20),
    ],
)
def test_traffic_of_two_rounds(spec: SharedSpec, sites: int, total: float) -> None:
    """ML-8: fp32 both ways, and at most a quarter of it with int4 up and int8 down."""
    exchanges = 2 * sites
    assert exchanges * 2 * message_bytes(spec, "float32") == total
    assert exchanges * (message_bytes(spec, "int4") + message_bytes(spec, "int8")) <= total / 4


# ---- error feedback ---------------------------------------------------------------------------------------


def total_error(folder: Path, kind: str, rounds: int, seed: int, feedback: bool) -> torch.Tensor:
    """Sum of what arrived minus sum of the updates."""
    generator = torch.Generator().manual_seed(seed)
    file = folder / "residual.safetensors"
    steady = torch.randn(9, 17, generator=generator)
    error = torch.zeros(9, 17)
    for number in range(rounds):
        update = {"w": steady + 0.3 * torch.randn(9, 17, generator=generator)}
        carried = ErrorFeedback(file, "run", number)
        sent = carried.compress(update, kind) if feedback else compress(update, kind)
        error += decompress(sent)["w"] - update["w"]
    return error


@pytest.mark.parametrize("kind", QUANTISED)
@given(seed=st.integers(0, 10_000), rounds=st.integers(1, 25))
@settings(max_examples=15, deadline=None)
def test_the_sum_of_what_was_sent_is_off_by_the_last_residual_only(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int, rounds: int
) -> None:
    folder = tmp_path_factory.mktemp("feedback")
    error = total_error(folder, kind, rounds, seed, feedback=True)
    residual = ErrorFeedback(folder / "residual.safetensors", "run", rounds).residual()["w"]
    torch.testing.assert_close(error, -residual, rtol=0, atol=1e-4)
    assert residual.abs().max() <= 6 * WORST[kind] / (1 - WORST[kind]), "a bound that no round enlarges"


def test_without_feedback_the_error_grows_with_the_rounds(tmp_path: Path) -> None:
    with_it = total_error(tmp_path, "int4", 100, 0, feedback=True).norm()
    without = total_error(tmp_path, "int4", 100, 0, feedback=False).norm()
    assert without > 5 * with_it


def test_a_restart_keeps_the_residual_and_another_run_has_none(tmp_path: Path) -> None:
    file, update = tmp_path / "residual.safetensors", {"w": torch.randn(4, 5)}
    first = ErrorFeedback(file, "run", 0).compress(update, "int4")
    lost = update["w"] - decompress(first)["w"]
    assert torch.equal(ErrorFeedback(file, "run", 1).residual()["w"], lost)
    again = ErrorFeedback(file, "run", 1).compress(update, "int4")
    expected = compress({"w": update["w"] + lost}, "int4")
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    assert ErrorFeedback(file, "another", 1).residual() == {}


def test_an_update_that_is_compressed_once_more_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "residual.safetensors"
    for number in range(3):
        update = {"w": torch.randn(4, 5)}
        sent = ErrorFeedback(file, "run", number).compress(update, "int4")
        for _ in range(2):  # its answer was lost in a crash
            again = ErrorFeedback(file, "run", number).compress(update, "int4")
            assert all(torch.equal(again[name], sent[name]) for name in sent)


def test_an_update_that_is_not_finite_is_refused_and_does_not_stay_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "residual.safetensors"
    ErrorFeedback(file, "run", 0).compress({"w": torch.randn(3, 3)}, "int8")
    feedback = ErrorFeedback(file, "run", 1)
    before = feedback.residual()["w"]
    sent = feedback.compress({"w": torch.full((3, 3), float("nan"))}, "int8")
    with pytest.raises(UpdateError, match="'w' has scales that are not finite"):
        decompress(sent)
    assert torch.equal(feedback.residual()["w"], before)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_nothing_is_carried_over_without_quantisation(tmp_path: Path, kind: str) -> None:
    feedback = ErrorFeedback(tmp_path / "residual.safetensors", "run", 0)
    feedback.compress({"w": torch.randn(3, 3)}, kind)
    assert not feedback.file.exists()


# ---- what a receiver refuses ------------------------------------------------------------------------------


def cut(sent: State, name: str) -> None:
    sent[name] = sent[name][:-1]


def break_scale(sent: State, value: float) -> None:
    sent[f"{SCALE}w"][0] = value


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sent, key: cut(sent, key), "codes of shape"),
        (lambda sent, key: sent.update({key: sent[key].float()}), "torch.float32 codes"),
        (lambda sent, key: sent.pop(f"{SCALE}w"), "without its scales"),
        (lambda sent, key: cut(sent, f"{SCALE}w"), "scales of shape"),
        (lambda sent, key: sent.update({f"{SCALE}w": sent[f"{SCALE}w"].float()}), "torch.float32 scales"),
        (lambda sent, key: break_scale(sent, float("nan")), "not finite and positive"),
        (lambda sent, key: break_scale(sent, float("inf")), "not finite and positive"),
        (lambda sent, key: break_scale(sent, -1.0), "not finite and positive"),
        (lambda sent, key: sent.update(w=torch.ones(10, 20)), "there twice"),
        (
            lambda sent, key: sent.update({key.replace("10x20", "99999x99999"): sent.pop(key)}),
            "codes of shape",
        ),
    ],
)
def test_a_malformed_tensor_is_refused_by_name(kind: str, change, reason: str) -> None:
    sent = compress({"w": torch.randn(10, 20)}, kind)
    change(sent, f"{kind}:10x20:w")
    with pytest.raises(UpdateError, match=reason) as caught:
        decompress(sent)
    assert str(caught.value).startswith("'w' ")


def test_only_what_is_not_quantised_can_be_summed_before_it_is_read() -> None:
    assert {kind for kind, codec in CODECS.items() if codec.summable} == {"float32", "bfloat16"}
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    added = compress({"w": a}, "float32")["w"] + compress({"w": b}, "float32")["w"]
    assert torch.equal(added, a + b)


def test_first_values_never_travel_below_bf16() -> None:
    assert {kind: initial_codec(kind) for kind in CODECS} == {
        "float32": "float32",
        "bfloat16": "bfloat16",
        "int8": "bfloat16",
        "int4": "bfloat16",
    }
