# SPDX-License-Identifier: Apache-2.0
"""Stock FLARE with the arrays of `array_method`: its FedAvg, and an executor that adds a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg

from peer_parts.clock_file import note_time

ARRAYS, EXAMPLES = 8, 10


class StockRounds(FedAvg):
    """FLARE's FedAvg from arrays of zeros, saved by FLARE after every round."""

    def __init__(self, values: int, **options: Any) -> None:
        super().__init__(persistor_id="", **options)
        self.values = values

    def load_model(self) -> FLModel:
        size = self.values // ARRAYS
        return FLModel(params={f"arrays.{k}": np.zeros(size, np.float32) for k in range(ARRAYS)})


class StockTrainer(Executor):
    """Adds a constant to the arrays and returns them.

    Args:
        torch: whether PyTorch is imported, as by every executor that trains a language model.
    """

    def __init__(self, torch: bool) -> None:
        super().__init__()
        if torch:
            import torch as _  # noqa: F401

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        note_time(fl_ctx.get_identity_name())
        arrays = {name: value + np.float32(1e-3) for name, value in from_shareable(shareable).data.items()}
        sent = DXO(data_kind=DataKind.WEIGHTS, data=arrays)
        sent.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, EXAMPLES)
        return sent.to_shareable()
