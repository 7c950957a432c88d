# SPDX-License-Identifier: Apache-2.0
"""Every task can be found by its name and tested by its function."""

from __future__ import annotations

import inspect

import pytest

from medflare.core.errors import ConfigError
from medflare.models.embedded import decoder_folder
from medflare.tasks import TASKS, get_task


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_complete(name: str) -> None:
    task = get_task(name)
    assert task.name == name
    assert task.headline
    assert decoder_folder(task.embedded_backbone).is_dir()
    assert {"role", "adapter", "split", "folder", "seed"} <= set(
        inspect.signature(task.load_scorer()).parameters
    )


def test_an_unknown_task_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"task 'images' does not exist\. Tasks: extraction, questions, "):
        get_task("images")
