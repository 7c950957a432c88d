# SPDX-License-Identifier: Apache-2.0
"""A worker process with the toy learner: tests start it in place of `federation.site.worker_main`."""

from __future__ import annotations

import sys

from fed_harness import toy_site_settings
from fed_learner import builder
from fed_toy import ToyLearner

from medflare.federation.site import worker_config, worker_main

if __name__ == "__main__":
    worker_config.load_site_settings = toy_site_settings
    worker_main.main(int(sys.argv[1]), builder(ToyLearner))
