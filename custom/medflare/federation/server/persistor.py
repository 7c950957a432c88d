# SPDX-License-Identifier: Apache-2.0
"""FLARE's persistor component: what a job folder names to have the result written as a PEFT folder."""

from __future__ import annotations

from medflare.federation.engine import FLComponent
from medflare.models.peft_folder import PeftFolder


class AdapterPersistor(FLComponent):
    """Writes `result/adapter` (final) and `result/best` of a run.

    Attributes:
        writer: takes what the sites declare of their adapter, and writes a state as a PEFT folder.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writer = PeftFolder()
