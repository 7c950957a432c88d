# SPDX-License-Identifier: Apache-2.0
"""A worker process with the toy learner: tests start it in place of `worker.main`."""

from __future__ import annotations

import sys

from fed_harness import toy_site_settings
from fed_learner import builder
from fed_toy import ToyLearner

from medflare.worker import config as worker_config
from medflare.worker import main as worker_main

if __name__ == "__main__":
    worker_config.load_site_settings = toy_site_settings
    worker_main.main(int(sys.argv[1]), builder(ToyLearner))
