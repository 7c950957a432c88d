# SPDX-License-Identifier: Apache-2.0
"""What every learner's update is, whatever it learns."""

from __future__ import annotations

from typing import Any

import torch

from medflare.core.plan import RoundPlan
from medflare.core.update import Update


def sent_as_declared(learner: Any, plan: RoundPlan) -> Update:
    """The update of a round, once it is known to be after minus received, of all that was declared."""
    received = {n: t + 0.01 if t.is_floating_point() else t for n, t in learner.initial_shared().items()}
    learner.load_shared(received)
    update = learner.fit(plan)
    assert {n: tuple(t.shape) for n, t in update.delta.items()} == {
        n: shape for n, (shape, _) in learner.shared_spec().items()
    }
    for name, value in learner.initial_shared().items():
        assert torch.allclose(received[name] + update.delta[name], value, atol=1e-7)
        assert update.delta[name].any()
    return update
