# SPDX-License-Identifier: Apache-2.0
"""FLARE's names for starting jobs: a second door beside engine.py, opened only by whoever starts one.

Importing `nvflare.recipe` takes `--export` out of `sys.argv`, so it must not happen before a program has
read its own arguments.
"""

from __future__ import annotations

from nvflare.job_config.api import FedJob
from nvflare.recipe.sim_env import SimEnv

__all__ = ["FedJob", "SimEnv"]
