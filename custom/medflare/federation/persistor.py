# SPDX-License-Identifier: Apache-2.0
"""Writes the result of a run as a PEFT folder, from the shared tensors alone: the base model is never loaded.

Shared names that start with `adapter.` minus that prefix are the keys of PEFT's own state dict
(`base_model.model...lora_A.weight`, without an adapter name); the other tensors go beside them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file

from medflare.federation import wire
from medflare.federation.engine import FLComponent
from medflare.learners.base import State

ADAPTER = "adapter."
FINAL, BEST = "adapter", "best"
LICENCE_NOTE = (
    "The adapter was trained on the sites' own data and carries no licence of its own: its use is governed "
    "by the licence of the base model and by the agreement between the sites."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the model card says about the run."""

    job: str
    method: str
    run_id: str
    base_model: str
    fingerprint: str
    sites: int
    rounds: int
    metrics: Mapping[str, float]


class AdapterPersistor(FLComponent):
    """Keeps `result/adapter` (final) and `result/best` of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter_config: dict[str, Any] = {}
        self.export: dict[str, Any] = {}

    def expect(self, description: Mapping[str, Any]) -> None:
        """Takes the PEFT configuration and the export facts from a site's description."""
        self.adapter_config = dict(description.get("adapter_config") or {})
        self.export = dict(description.get("export") or {})

    def write(self, folder: Path, state: State, card: Card) -> Path:
        """Writes a PEFT folder and puts it at `folder` in one step."""
        scratch = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        adapter = {n.removeprefix(ADAPTER): v.contiguous() for n, v in state.items() if n.startswith(ADAPTER)}
        rest = {name: value.contiguous() for name, value in state.items() if not name.startswith(ADAPTER)}
        save_file(adapter, scratch / "adapter_model.safetensors", metadata={"format": "pt"})
        wire.write_json(scratch / "adapter_config.json", self.adapter_config)
        if rest:
            save_file(rest, scratch / "report_generator.safetensors", metadata={"format": "pt"})
            wire.write_json(scratch / "report_generator.json", self.export)
        (scratch / "README.md").write_text(model_card(card), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(scratch, folder)
        return folder


def model_card(card: Card) -> str:
    """README.md of an adapter: YAML front matter for tools, a page for people."""
    front = {
        "base_model": card.base_model,
        "library_name": "peft",
        "tags": ["medflare", "federated-learning", card.method],
    }
    numbers = "\n".join(f"| {name} | {value:.4g} |" for name, value in sorted(card.metrics.items()))
    table = f"\n| metric | mean over sites |\n|---|---|\n{numbers}\n" if numbers else ""
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n"
        f"# {card.job}: adapter of a federated run\n\n"
        f"Method `{card.method}`, {card.sites} sites, {card.rounds} rounds, run `{card.run_id}`.\n"
        f"Base model `{card.base_model}`, fingerprint `{card.fingerprint}`.\n{table}\n"
        "Open it with `peft.PeftModel.from_pretrained(base, folder)`.\n\n"
        f"## Licence\n\n{LICENCE_NOTE}\n\n## Not for clinical use\n\n"
        "Generated text is a draft for a qualified reader.\n"
    )


def readable(folder: Path) -> bool:
    """Whether a folder holds an adapter's two files in a state that can be opened."""
    try:
        json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        wire.load_tensors(folder / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError):
        return False
    return True
