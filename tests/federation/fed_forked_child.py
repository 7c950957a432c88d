# SPDX-License-Identifier: Apache-2.0
"""A program that `fed_forked_parent` starts: says what it finds, ends as it is told, or waits."""

from __future__ import annotations

import json
import os
import sys
import time

if __name__ == "__main__":
    what, *more = sys.argv[1:]
    if what == "facts":
        found = {
            "arguments": more,
            "added": os.environ.get("ADDED"),
            "folder": os.getcwd(),
            "path": sys.path[:2],
            "torch": "torch" in sys.modules,
            "input": sys.stdin.read(),
            "pid": os.getpid(),
            "group": os.getpgid(0),
            "python": os.path.basename(sys.executable),
        }
        print(json.dumps(found), flush=True)
    elif what == "exit":
        sys.exit(int(more[0]))
    elif what == "signal":
        os.kill(os.getpid(), int(more[0]))
        time.sleep(60)
    else:
        print(os.getpid(), flush=True)
        time.sleep(600)
