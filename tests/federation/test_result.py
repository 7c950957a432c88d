# SPDX-License-Identifier: Apache-2.0
"""What the server writes: a PEFT folder, curves, progress."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
import yaml
from nvflare.apis.fl_context import FLContext
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from medflare.federation.engine import GroupInfoCollector, InfoCollector
from medflare.federation.persistor import AdapterPersistor, Card, readable
from medflare.federation.progress import ProgressReporter
from medflare.federation.progress_view import Board, Follower, follow, human_bytes

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
    persistor = AdapterPersistor()
    persistor.expect({"adapter_config": config, "export": {"kind": "test"}})
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


def test_a_run_can_be_followed(federation) -> None:
    run = federation()
    run.run()
    console = Console(file=io.StringIO(), width=120)
    follow(run.folder / "progress.jsonl", lambda: True, console)
    text = console.file.getvalue()
    assert "update: round=1 site=site-2 verdict=accepted" in text
    assert text.rstrip().splitlines()[-1].startswith("completed")


def test_the_board_adds_up_bytes_and_shows_the_last_loss(federation) -> None:
    run = federation()
    run.run()
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
