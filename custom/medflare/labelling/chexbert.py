# SPDX-License-Identifier: Apache-2.0
"""CheXbert (Smit et al., EMNLP 2020) from local weights: BERT with 14 linear heads on the [CLS] state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.core.conditions import CONDITIONS
from medflare.core.errors import ConfigError

WEIGHTS = "chexbert.pth"
MAX_TOKENS = 512
"""BERT's positions, [CLS] and [SEP] included; longer reports are cut, explicitly."""
_CLASSES = (4,) * (len(CONDITIONS) - 1) + (2,)
_HELP = (
    "On a machine with internet, download chexbert.pth (link 'Checkpoint download' in the README of "
    "github.com/stanfordmlgroup/CheXbert) and vocab.txt (huggingface.co/google-bert/bert-base-uncased), "
    "and put both into this folder; or choose the built-in rule labeller."
)


def chexbert_labels(
    texts: Sequence[str], folder: Path | str, *, batch_size: int = 32, device: str = "cpu"
) -> list[tuple[int, ...]]:
    """Return 14 values of Code per text, in the order of CONDITIONS; CheXbert has the same codes.

    Args:
        folder: holds `chexbert.pth` (keys `module.bert.*`, `module.linear_heads.N.*`), `vocab.txt`, and
            `config.json` only where the BERT is not bert-base-uncased.

    Raises:
        ConfigError: files are missing or the weights have another layout; says what to put where.
    """
    import torch

    folder = Path(folder)
    bert, heads = load_chexbert(folder)
    tokenizer = _tokenizer(folder)
    bert.to(device)
    rows: list[tuple[int, ...]] = []
    with torch.inference_mode():
        for first in range(0, len(texts), batch_size):
            batch = [" ".join(text.split()) for text in texts[first : first + batch_size]]
            inputs = tokenizer(
                batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
            )
            state = bert(
                input_ids=inputs["input_ids"].to(device), attention_mask=inputs["attention_mask"].to(device)
            ).last_hidden_state[:, 0]  # (B, hidden)
            # Each head: (B, hidden) x (hidden, classes) -> the most probable class of each text.
            columns = [(state @ w.to(device).T + b.to(device)).argmax(dim=1).tolist() for w, b in heads]
            rows.extend(tuple(row) for row in zip(*columns, strict=True))
    return rows


def load_chexbert(folder: Path) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return the BERT in evaluation mode, and (weight, bias) of the 14 heads."""
    import torch
    from transformers import BertConfig, BertModel

    _require(folder, (WEIGHTS, "vocab.txt"))
    stored = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True)
    state = {
        key.removeprefix("module."): value for key, value in stored.get("model_state_dict", stored).items()
    }
    config = BertConfig.from_pretrained(folder) if (folder / "config.json").is_file() else BertConfig()
    bert = BertModel(config)
    weights = {key.removeprefix("bert."): value for key, value in state.items() if key.startswith("bert.")}
    missing, unexpected = bert.load_state_dict(weights, strict=False)
    unexpected = [key for key in unexpected if not key.endswith("position_ids")]
    if missing or unexpected:
        raise ConfigError(
            f"{folder / WEIGHTS}: is not a CheXbert checkpoint: missing {missing[:3]}, "
            f"unknown {unexpected[:3]}. {_HELP}"
        )
    return bert.eval(), [_head(state, index, config.hidden_size, folder) for index in range(len(_CLASSES))]


def _head(state: Mapping[str, Any], index: int, hidden: int, folder: Path) -> tuple[Any, Any]:
    weight, bias = state.get(f"linear_heads.{index}.weight"), state.get(f"linear_heads.{index}.bias")
    expected = (_CLASSES[index], hidden)
    if weight is None or bias is None or tuple(weight.shape) != expected:
        actual = None if weight is None else tuple(weight.shape)
        raise ConfigError(
            f"{folder / WEIGHTS}: head {index} ({CONDITIONS[index]}) has shape {actual}, "
            f"expected {expected}. {_HELP}"
        )
    return weight, bias


def _tokenizer(folder: Path) -> Any:
    from transformers import BertTokenizer

    return BertTokenizer.from_pretrained(folder, local_files_only=True, do_lower_case=True)


def _require(folder: Path, names: Sequence[str]) -> None:
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise ConfigError(f"{folder}: CheXbert needs {', '.join(absent)}, which is not there. {_HELP}")
