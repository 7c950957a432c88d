# SPDX-License-Identifier: Apache-2.0
"""`python fed_forking.py <folder>` is `forked_simulator` with stand-ins for the simulator and its clients."""

from __future__ import annotations

import sys
from pathlib import Path

from medflare.recipes import forked_simulator

if __name__ == "__main__":
    forked_simulator.SIMULATOR, forked_simulator.CLIENT = "fed_forked_parent", "fed_forked_child"
    raise SystemExit(forked_simulator.main(Path(sys.argv[1])))
