# SPDX-License-Identifier: Apache-2.0
"""What the server writes: a PEFT folder, curves, progress."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fed_harness import completed
from nvflare.apis.fl_context import FLContext
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from medflare.core.errors import RunError
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.federation.engine import GroupInfoCollector, InfoCollector
from medflare.federation.server.progress import ProgressReporter
from medflare.models.adapters.lora import seeded_a
from medflare.models.peft_folder import Card, PeftFolder, readable
from medflare.recipes.progress_view import Board, Follower, follow, human_bytes

CARD = Card(
    job="fedmrg",
    method="fedmrg",
    run_id="r1",
    base_model="tiny",
    fingerprint="f0",
    sites=3,
    rounds=5,
    metrics={"val_loss": 1.25},
)


def described(**facts: Any) -> SiteDescription:
    """What a site with these facts says about itself."""
    return SiteDescription(backbone=BackboneFacts(name="b", fingerprint="f"), **facts)


def test_the_result_opens_in_peft_as_it_is(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")

    def base():
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
        return transformers.LlamaForCausalLM(config)

    model = peft.get_peft_model(
        base(), peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    )
    torch.nn.init.normal_(model.base_model.model.model.layers[0].self_attn.q_proj.lora_B["default"].weight)
    state = {f"adapter.{name}": value for name, value in peft.get_peft_model_state_dict(model).items()}
    state["head.weight"] = torch.ones(2, 2)
    config = model.peft_config["default"].to_dict()
    config = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    persistor = PeftFolder()
    persistor.expect(described(adapter_config=config, export={"file": "report_generator", "kind": "test"}))
    folder = persistor.write(tmp_path / "adapter", state, CARD)

    again = peft.PeftModel.from_pretrained(base(), folder)
    tokens = torch.arange(5)[None]
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)
    assert json.loads((folder / "report_generator.json").read_text()) == {"kind": "test"}
    front = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert (front["base_model"], front["library_name"]) == ("tiny", "peft")
    assert readable(folder)
    (folder / "adapter_model.safetensors").write_bytes(b"half")
    assert not readable(folder)


def pair(state: dict[str, torch.Tensor], scale: float) -> torch.Tensor:
    return scale * state["q.lora_B.weight"] @ state["q.lora_A.weight"]


def test_factors_that_a_rule_merged_are_written_as_the_adapter_with_its_scale(tmp_path: Path) -> None:
    persistor = PeftFolder()
    persistor.expect(described(adapter_config={"peft_type": "LORA", "r": 2, "lora_alpha": 8}))
    merged = {"q.lora_A.weight": torch.randn(6, 5), "q.lora_B.weight": torch.randn(4, 6)}
    short = {"k.lora_A.weight": torch.randn(3, 5), "k.lora_B.weight": torch.randn(3, 3)}
    personalised = {"q.lora_A.weight": torch.randn(2, 5), "q.lora_B.weight": torch.zeros(4, 2)}
    state = {f"merged.{n}": v for n, v in (merged | short).items()}
    state |= {f"adapter.{n}": v for n, v in personalised.items()}
    folder = persistor.write(tmp_path / "adapter", state, CARD)
    config = json.loads((folder / "adapter_config.json").read_text())
    written = load_file(folder / "adapter_model.safetensors")
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (6, 24, "LORA")
    assert {v.shape[0 if "lora_A" in n else 1] for n, v in written.items()} == {6}
    torch.testing.assert_close(pair(written, 24 / 6), pair(merged, 8 / 2))
    expected = short["k.lora_B.weight"] @ short["k.lora_A.weight"]
    torch.testing.assert_close(written["k.lora_B.weight"] @ written["k.lora_A.weight"], expected)

    state["adapter.q.lora_B.weight"] = torch.randn(4, 2)
    folder = persistor.write(tmp_path / "adapter", state, CARD)
    written = load_file(folder / "adapter_model.safetensors")
    personalised["q.lora_B.weight"] = state["adapter.q.lora_B.weight"]
    torch.testing.assert_close(pair(written, 4.0), pair(merged, 4.0) + pair(personalised, 4.0))
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 8


def test_factors_that_never_travelled_are_completed(tmp_path: Path) -> None:
    name = "base_model.model.q"
    a, b = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
    for missing, there, expected in [(a, b, seeded_a(a, (2, 5), 7)), (b, a, torch.zeros(2, 5))]:
        export = {"file": "extraction", "untravelled": {"seed": 7, "shapes": {missing: [2, 5]}}}
        persistor = PeftFolder()
        persistor.expect(described(adapter_config={"r": 2, "lora_alpha": 8}, export=export))
        folder = persistor.write(tmp_path / "adapter", {f"adapter.{there}": torch.ones(4, 2)}, CARD)
        written = load_file(folder / "adapter_model.safetensors")
        assert set(written) == {a, b}
        assert torch.equal(written[missing], expected)


def test_a_merged_adapter_opens_in_peft_and_computes_what_was_merged(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.q = torch.nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q(x)

    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q"]).to_dict()
    config = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
    persistor = PeftFolder()
    persistor.expect(described(adapter_config=config))
    stem = "base_model.model.q"
    a, b = torch.randn(6, 5), torch.randn(4, 6)
    state = {f"merged.{stem}.lora_A.weight": a, f"merged.{stem}.lora_B.weight": b}
    folder = persistor.write(tmp_path / "adapter", state, CARD)
    x = torch.randn(3, 5)
    with torch.no_grad():
        expected = Model()(x) + 8 / 2 * x @ (b @ a).T
        torch.testing.assert_close(peft.PeftModel.from_pretrained(Model(), folder)(x), expected)


@pytest.mark.parametrize(
    ("export", "rest", "files"),
    [
        ({"file": "extraction", "format": 1}, False, {"extraction.json"}),
        (
            {"file": "extraction", "format": 1},
            True,
            {"extraction.json", "extraction.safetensors"},
        ),
        ({}, True, {"model.safetensors"}),
        ({}, False, set()),
    ],
)
def test_the_learner_names_what_lies_beside_the_adapter(tmp_path: Path, export, rest, files) -> None:
    persistor = PeftFolder()
    persistor.expect(described(adapter_config={"r": 1}, export=export))
    state = {"adapter.w": torch.ones(1)} | ({"head": torch.ones(2)} if rest else {})
    folder = persistor.write(tmp_path / "adapter", state, CARD)
    usual = {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    assert {path.name for path in folder.iterdir()} == usual | files
    if "extraction.json" in files:
        assert json.loads((folder / "extraction.json").read_text()) == {"format": 1}


@pytest.mark.parametrize("file", ["../../x", "adapter_model", "a/b", "", "X"])
def test_a_site_cannot_name_a_path(file: str) -> None:
    with pytest.raises(RunError, match="export facts name the file"):
        PeftFolder().expect(described(export={"file": file}))


def test_a_backbones_name_cannot_write_into_the_model_card(tmp_path: Path) -> None:
    """Any printable text is a name to the server; Markdown shows HTML where it stands outside a code span."""
    name = "llama` <img src=x onerror=alert(1)> [free weights](https://evil.example) `"
    folder = PeftFolder().write(
        tmp_path / "adapter", {"adapter.w": torch.zeros(1)}, replace(CARD, base_model=name)
    )
    card = (folder / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["base_model"] == name
    line = next(line for line in body.splitlines() if line.startswith("Base model"))
    assert [part for place, part in enumerate(line.split("`")) if place % 2 == 0] == [
        *("Base model ", ", fingerprint ", ".")
    ]


def test_curves_are_in_tensorboard(tmp_path: Path) -> None:
    reporter = ProgressReporter()
    reporter.open(tmp_path)
    for step, loss in enumerate((2.0, 1.0, float("nan"))):
        reporter.curves(step, "site-1", {"train_loss": loss})
    reporter.close()
    events = EventAccumulator(str(tmp_path / "tb_events"), size_guidance={"scalars": 0})
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train_loss/site-1")] == [(0, 2.0), (1, 1.0)]


def test_flares_statistics_and_consoles_see_the_progress(tmp_path: Path) -> None:
    reporter = ProgressReporter(tensorboard=False)
    reporter.open(tmp_path)
    reporter.event("round", round=3, rounds=5, sites=["site-1"])
    collector, ctx = GroupInfoCollector(), FLContext()
    ctx.set_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, collector)
    reporter.handle_event(InfoCollector.EVENT_TYPE_GET_STATS, ctx)
    assert collector.info["Progress"]["round"] == 3
    assert reporter.on_command("medflare.progress", {}, ctx)["phase"] == "round"


def test_a_run_can_be_followed_and_the_board_adds_up_bytes(federation) -> None:
    run = federation()
    completed(run)
    console = Console(file=io.StringIO(), width=120)
    follow(run.folder / "progress.jsonl", lambda: True, console)
    text = console.file.getvalue()
    assert "update: round=1 site=site-2 verdict=accepted" in text
    assert text.rstrip().splitlines()[-1].startswith("completed")
    board = Board()
    for event in Follower(run.folder / "progress.jsonl").new_events():
        board.take(event)
    assert board.rows["site-1"]["bytes"] == 80
    assert board.title == "completed"
    assert human_bytes(1_234_567) == "1.23 MB"


def test_a_follower_reads_whole_lines_only(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "progress.jsonl")
    assert follower.new_events() == []
    (tmp_path / "progress.jsonl").write_text('{"phase": "a"}\n{"phase"')
    assert follower.new_events() == [{"phase": "a"}]
    with (tmp_path / "progress.jsonl").open("a") as file:
        file.write(': "b"}\n')
    assert follower.new_events() == [{"phase": "b"}]
