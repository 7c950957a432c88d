# SPDX-License-Identifier: Apache-2.0
"""Opens the text model of a result folder: the frozen backbone with the adapter that a run made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import PositiveInt

from medflare.core.config import Settings, parse
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraChoice, LoraSettings
from medflare.models.adapters.registry import PeftChoice, effective_settings, settings_of_file
from medflare.models.result_files import block_of, load_adapter, load_base, read_json
from medflare.models.text_model import TextModel


class ExportedText(Settings):
    """Contents of the file beside an adapter, for every text task."""

    lora: LoraSettings
    peft: PeftChoice = LoraChoice()
    max_tokens: PositiveInt


Exported = TypeVar("Exported", bound=ExportedText)
Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class TextResult(Generic[Exported, Opened]):
    """Opens the result folders of one text task.

    Attributes:
        task: name of the file beside the adapter, without its ending, and of the block in it.
        block: class of that block.
        build: (text model, block, records of one batch) -> what the task makes of them.
    """

    task: str
    block: type[Exported]
    build: Callable[[TextModel, Exported, int], Opened]

    def __call__(
        self,
        folder: Path,
        *,
        personalised: Path | None = None,
        backbone: Path | None = None,
        precision: str = "auto",
        device: str = "cpu",
        batch: int = 32,
        zero_shot: bool = False,
    ) -> Opened:
        """Return the task's model of a result folder, with its adapter in use.

        Args:
            folder: `result/adapter` of a run.
            personalised: a site's own `personalised` folder, used instead of the global adapter.
            backbone: the frozen model's folder; None for the run's where this machine has it by name, or
                the embedded one.
            batch: records of one batch.
            zero_shot: leave the adapter out: the frozen model with the run's wording and settings.

        Raises:
            DataError: a file is missing.
            ConfigError: the backbone is not the one of the run.
        """
        file = folder / f"{self.task}.json"
        facts = read_json(file)
        exported = parse(self.block, block_of(facts, self.task, file), str(file))
        adapter = personalised or folder
        written = settings_of_file(exported.peft, exported.lora, read_json(adapter / "adapter_config.json"))
        recorded = block_of(facts, "backbone", file)
        base = load_base(folder, recorded, backbone, precision, device, "notes_decoder")
        model = TextModel(base, effective_settings(*written), (GENERIC,), 0)
        load_adapter(model.adapters, adapter)
        if zero_shot:
            model.adapters.use(())
        return self.build(model, exported, batch)
