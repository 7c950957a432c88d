# SPDX-License-Identifier: Apache-2.0
"""A process with a server and three sites is killed at 200 drawn moments: never an unreadable state.

Not part of CI: `make test-faults`. FAULTS_KILLS is how often in all, FAULTS_SEED draws when.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KILLS = int(os.environ.get("FAULTS_KILLS", "200"))
SEED = int(os.environ.get("FAULTS_SEED", "7"))


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.fault(
    "SIGKILL of server and sites at drawn moments",
    phase=f"any; {KILLS // 2} kills, {{protection}}",
    result="each state and record can be read; equal after `resume`",
)
@pytest.mark.parametrize("protection", ["none", "masking"])
def test_a_process_that_is_killed_at_drawn_moments_leaves_what_can_be_read(
    tmp_path: Path, protection: str
) -> None:
    program = HERE / "killed_run_program.py"
    path = os.pathsep.join([str(HERE.parent), str(HERE.parent / "federation"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(KILLS // 2), str(SEED), protection],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=2900,
    )
    assert done.returncode == 0
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["kills"] == KILLS // 2
    assert len(found["after_rounds"]) > 3, "they came in many rounds"
