# SPDX-License-Identifier: Apache-2.0
"""Settings of a site with one cohort, what is read from it, and a result folder: built here for all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medflare.core.tensors import State
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig


def site_config(
    format: str,
    root: Path,
    backbone: Path | None = None,
    name: str = "site-1",
    cohort: dict[str, Any] | None = None,
    **more: Any,
) -> SiteConfig:
    """Return the settings of a site on the CPU in fp32; `cohort` has further settings of its only cohort."""
    folder = {} if backbone is None else {"folder": str(backbone)}
    return SiteConfig.model_validate(
        {
            "name": name,
            "cohort": {"format": format, "root": str(root), **(cohort or {})},
            "backbone": {"precision": "fp32", **folder},
            "device": "cpu",
            **more,
        }
    )


def read_cohort(format: str, root: Path, **settings: Any) -> Cohort:
    """Read a folder in this format, with further settings of its cohort."""
    return load_cohort(SiteConfig.model_validate({"cohort": {"format": format, "root": root, **settings}}))


def write_result(folder: Path, learner: Any, state: State | None = None, **card: Any) -> Path:
    """Write the adapter folder of a run as the server does; returns it.

    Args:
        folder: of the run.
        learner: whose description the server has.
        state: what the rounds left, by default what the learner has now.
        card: entries of the model card that are not the usual ones.
    """
    from medflare.models.peft_folder import Card, PeftFolder

    usual = {"job": "j", "method": "m", "run_id": "r", "base_model": "b", "fingerprint": "f"}
    persistor = PeftFolder()
    persistor.expect(learner.describe())
    shared = learner.initial_shared() if state is None else state
    facts = Card(**{**usual, "sites": 1, "rounds": 1, "metrics": {}, **card})
    return persistor.write(folder / "adapter", shared, facts)
