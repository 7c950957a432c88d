# SPDX-License-Identifier: Apache-2.0
"""`medflare` with the stand-in for FLARE's simulator: `... <how> run jobs/fedmrg ...`."""

from __future__ import annotations

import sys
from pathlib import Path

from medflare.cli.main import main
from medflare.recipes import simulator_process

STAND_IN = Path(__file__).with_name("simulator_stand_in.py")

if __name__ == "__main__":
    how = sys.argv.pop(1)
    simulator_process.simulator_command = lambda job, workspace, sites, threads: [  # type: ignore[assignment]
        sys.executable,
        str(STAND_IN),
        str(workspace),
        how,
    ]
    simulator_process.fork_server.usable = lambda: False  # the stand-in has no workers
    main()
