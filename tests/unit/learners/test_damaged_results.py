# SPDX-License-Identifier: Apache-2.0
"""A result folder from elsewhere, damaged or changed in any place: its test ends with an error of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from method_sites import Make
from safetensors.torch import load_file, save_file

from medflare.core.errors import ConfigError, DataError, MedflareError
from medflare.data.settings.site import SiteConfig
from medflare.learners.registry import METHODS
from medflare.recipes import after_run
from medflare.tasks.scoring import EvaluationOptions
from site_builders import write_result

READ = {"peft_type", "r", "lora_alpha", "target_modules"}
"""Entries of adapter_config.json that matter; the other thirty are PEFT's own."""


def changed(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what was changed, and a file's content without one of its entries or with nonsense there."""
    for name in sorted(content.keys() & READ or content):
        yield f"without {name}", {key: value for key, value in content.items() if key != name}
        yield f"nonsense in {name}", content | {name: {"nonsense": [1]}}


def test_a_damaged_result_ends_with_an_error_that_names_a_file(
    make_learner: Make, site_of: Callable[[str, str], SiteConfig], any_method: str, tmp_path: Path
) -> None:
    folder, site = write_result(tmp_path, make_learner(any_method)), site_of(any_method, "site-2")

    def score() -> None:
        after_run.tester(folder)(
            folder,
            site,
            role="unseen",
            adapter=None,
            split="test",
            folder=tmp_path / "test",
            seed=0,
            options=EvaluationOptions(limit=1),
        )

    score()
    result = folder / METHODS[any_method].result_file
    for file in (result, folder / "adapter_config.json"):
        whole = file.read_text(encoding="utf-8")
        for what, content in changed(json.loads(whole)):
            file.write_text(json.dumps(content), encoding="utf-8")
            problem = ""
            try:
                score()
            except MedflareError as error:
                problem = str(error)
            except Exception as error:
                raise AssertionError(f"{file.name} {what}: {error!r}") from error
            assert problem or what != "without backbone", file.name
            assert not problem or file.name in problem or str(folder) in problem, f"{what}: {problem}"
        file.write_text(whole, encoding="utf-8")
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name in sorted(tensors, key=lambda key: tensors[key].numel())[:: max(len(tensors) // 3, 1)]:
            save_file(tensors | {name: torch.zeros(2, 3, 5)}, file)
            with pytest.raises((DataError, ConfigError), match=file.name):
                score()
            if tensors[name].is_floating_point():
                save_file(tensors | {name: torch.full_like(tensors[name], torch.nan)}, file)
                with pytest.raises(DataError, match=f"{file.name}: the tensor .* not finite"):
                    score()
        save_file(tensors, file)
