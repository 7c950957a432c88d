# SPDX-License-Identifier: Apache-2.0
"""Files of tensors and of JSON, written so that a crash leaves the old file or the new one, never half of
one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from medflare.core.tensors import State


def save_tensors(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any] | None = None) -> None:
    """Write a safetensors file atomically; `values` (JSON) goes into its header under 'values'."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    plain = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    save_file(plain, scratch, metadata={"values": json.dumps(dict(values or {}))})
    os.replace(scratch, path)


def load_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    """Return the tensors and the values that `save_tensors` wrote."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        values: dict[str, Any] = json.loads((file.metadata() or {}).get("values", "{}"))
    return tensors, values


def read_json(path: Path) -> Any:
    """Return what `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, indented by one, with a line break at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, path)
