# SPDX-License-Identifier: Apache-2.0
"""Writes the result of a run as a PEFT folder, from the shared tensors alone: the base model is never loaded.

Shared names that start with `adapter.` minus that prefix are the keys of PEFT's own state dict
(`base_model.model...lora_A.weight`, without an adapter name); the other tensors go beside them, in files
whose name the learner gives (`export.file`). What a rule has merged into the base weights is part of the
result, so the adapter that is written holds it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from medflare.core.errors import RunError
from medflare.core.site_description import SiteDescription
from medflare.core.tensor_names import split_by_prefix
from medflare.core.tensors import State
from medflare.models.adapters.bottleneck import TYPE as BOTTLENECK
from medflare.models.adapters.lora import pad_to_common_rank
from medflare.models.adapters.seed_generated import seed_generated
from medflare.models.adapters.virtual_tokens import virtual_token_file
from medflare.wire.durable import replace_durably, write_json
from medflare.wire.files import load_tensors
from medflare.wire.folders import sync_folder

ADAPTER, MERGED = "adapter.", "merged."
A, B = ".lora_A.weight", ".lora_B.weight"
FILE = re.compile(r"(?!adapter)[a-z][a-z0-9_]{0,47}")
FINAL, BEST = "adapter", "best"
PEFT_OPENS = "Open it with `peft.PeftModel.from_pretrained(base, folder)`."
WHOLE_MODEL = (
    "There is no adapter: all weights lie in `{file}.safetensors`. Open it with `medflare evaluate`, "
    "`medflare generate` or `medflare extract`."
)
OWN_ADAPTER = (
    "The bottleneck adapters in `adapter_model.safetensors` are medflare's own: PEFT has no such method. "
    "Open them with `medflare evaluate`, `medflare generate` or `medflare extract`."
)
LICENCE_NOTE = (
    "These weights were trained on the sites' own data and carry no licence of their own: their use is "
    "governed by the licence of the base model and by the agreement between the sites."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Facts of the run on the model card."""

    job: str
    method: str
    run_id: str
    base_model: str
    fingerprint: str
    sites: int
    rounds: int
    metrics: Mapping[str, float]
    epsilon: float | None = None
    delta: float | None = None


class PeftFolder:
    """Writes states of a run as PEFT folders.

    Attributes:
        adapter_config: `adapter_config.json`; export: facts that stand beside the other tensors.
        file: stem of the files that hold what is no part of the adapter.
        not_communicated: shapes and seed of the adapter's tensors that every site makes by itself.
    """

    def __init__(self) -> None:
        self.adapter_config: dict[str, Any] = {}
        self.export: dict[str, Any] = {}
        self.file = "model"
        self.not_communicated: dict[str, Any] = {}

    def expect(self, description: SiteDescription) -> None:
        """Take the PEFT configuration and the export facts from a site's description.

        Raises RunError for a file name that is more than a name: it comes from a site.
        """
        self.adapter_config = dict(description.adapter_config)
        self.export = dict(description.export)
        self.file = str(self.export.pop("file", "model"))
        self.not_communicated = dict(self.export.pop("untravelled", None) or {})
        if not FILE.fullmatch(self.file):
            raise RunError(
                f"the sites' export facts name the file '{self.file}'; expected lower-case letters, digits "
                "and underscores, and not the adapter's own name."
            )

    def _missing(self, adapter: State) -> State:
        """Return what is not communicated: A of LoRA, A and B of VeRA from the run's seed, B of LoRA = 0."""
        shapes, seed = self.not_communicated.get("shapes", {}), self.not_communicated.get("seed", 0)
        missing = {name: tuple(shape) for name, shape in shapes.items() if name not in adapter}
        return seed_generated(missing, seed)

    def write(self, folder: Path, state: State, card: Card) -> Path:
        """Write a PEFT folder and put it at `folder` in one step."""
        scratch = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        rest, adapter = split_by_prefix(state, ADAPTER)
        rest, merged = split_by_prefix(rest, MERGED)
        adapter = virtual_token_file(adapter | self._missing(adapter))
        config = self.adapter_config
        if merged:
            adapter, config = side_by_side(merged, adapter, config)
        _save(adapter, scratch / "adapter_model.safetensors")
        write_json(scratch / "adapter_config.json", config)
        if rest:
            _save(rest, scratch / f"{self.file}.safetensors")
        if self.export:
            write_json(scratch / f"{self.file}.json", self.export)
        opening = self._opening(config)
        (scratch / "README.md").write_text(model_card(card, opening), encoding="utf-8")
        sync_folder(scratch)  # a record that says "completed" must not outlive its adapter
        shutil.rmtree(folder, ignore_errors=True)
        replace_durably(scratch, folder)
        return folder

    def _opening(self, config: Mapping[str, Any]) -> str:
        """Return how to open the folder."""
        if config.get("peft_type") == BOTTLENECK:
            return OWN_ADAPTER
        return PEFT_OPENS if config else WHOLE_MODEL.format(file=self.file)


def _save(tensors: State, path: Path) -> None:
    save_file({n: v.contiguous() for n, v in tensors.items()}, path, metadata={"format": "pt"})


def side_by_side(merged: State, learned: State, config: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    """Return one adapter that adds what was merged to what is still learned, and its PEFT configuration.

    Both are PEFT states; one of `learned` with B = 0 adds nothing and is left out. Pairs come to a rank R by
    rows and columns of zeros, and `lora_alpha` becomes R·a/ρ, so that the scale of every pair stays a/ρ.
    Tensors of `learned` that are no pair stay as they are.
    """
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for stem in sorted({name.removesuffix(A).removesuffix(B) for name in (*merged, *learned)}):
        candidates = [
            (s[stem + A], s[stem + B]) for s in (merged, learned) if {stem + A, stem + B} <= s.keys()
        ]
        candidates = [pair for pair in candidates if pair[1].any()] or candidates[:1]
        if candidates:
            pairs[stem] = torch.cat([a for a, _ in candidates], 0), torch.cat([b for _, b in candidates], 1)
    factors = {
        stem + end: factor for stem, pair in pairs.items() for end, factor in zip((A, B), pair, strict=True)
    }
    factors, rank = pad_to_common_rank(factors)
    alpha = config["lora_alpha"] * rank / config["r"]
    return learned | factors, {
        **config,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
    }


def _code(text: str) -> str:
    """Return a name that a site gave as Markdown that stays one, whatever is in it."""
    return "`" + text.replace("`", "'") + "`"


def _privacy(card: Card) -> str:
    """Return what the run's differential privacy is, as a line of its own; empty without any."""
    if card.epsilon is None:
        return ""
    delta = "" if card.delta is None else f" at δ = {card.delta:g}"
    return (
        f"\nTrained with differential privacy for the sites' patients: ε = {card.epsilon:.3g}{delta} for "
        "each patient in this run, as each site counted it. Validation and tests are outside it.\n"
    )


def model_card(card: Card, opening: str) -> str:
    """Return the README.md of a result: YAML front matter for tools, a page for people.

    opening: how to open what lies beside it.
    """
    front = {
        "base_model": card.base_model,
        "library_name": "peft" if opening == PEFT_OPENS else "medflare",
        "tags": ["medflare", "federated-learning", card.method],
    }
    numbers = "\n".join(f"| {name} | {value:.4g} |" for name, value in sorted(card.metrics.items()))
    table = f"\n| metric | mean over sites |\n|---|---|\n{numbers}\n" if numbers else ""
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n"
        f"# {card.job}: result of a federated run\n\n"
        f"Method `{card.method}`, {card.sites} sites, {card.rounds} rounds, run `{card.run_id}`.\n"
        f"Base model {_code(card.base_model)}, fingerprint {_code(card.fingerprint)}.\n"
        f"{_privacy(card)}{table}\n"
        f"{opening}\n\n"
        f"## Licence\n\n{LICENCE_NOTE}\n\n## Not for clinical use\n\n"
        "Generated text is a draft for a qualified reader.\n"
    )


def readable(folder: Path) -> bool:
    """Return whether a folder holds an adapter's two files in a state that can be opened."""
    try:
        json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        load_tensors(folder / "adapter_model.safetensors")
    except (OSError, ValueError, RecursionError):
        return False
    return True
