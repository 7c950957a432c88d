# SPDX-License-Identifier: Apache-2.0
"""The classes a site lets a job name, one by one: FLARE's own default list and each component of ours.

Never a package prefix: with `medflare.` in the list, a job could name anything a module of ours imports,
`subprocess.Popen` included. `python -m medflare.recipes.allow_list` writes the template's file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from medflare.federation.engine import DEFAULT_CLASS_ALLOW_LIST
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.controller import RoundsController, TemporalRoundsController
from medflare.federation.server.persistor import AdapterPersistor
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.site.executor import LearnerExecutor
from medflare.wire.durable import write_json

COMPONENTS: tuple[type, ...] = (
    LearnerExecutor,
    RoundsController,
    TemporalRoundsController,
    ValidatingAggregator,
    AdapterPersistor,
    ProgressReporter,
)
"""Every class a job folder of ours may name."""
TEMPLATE = Path("workspace_templates/simulator/local/resources.json")


def class_path(component: type) -> str:
    """Return the dotted path by which a job names a class."""
    return f"{component.__module__}.{component.__qualname__}"


def allowed_classes() -> list[str]:
    """Return FLARE's own default list and our components."""
    return [*DEFAULT_CLASS_ALLOW_LIST, *(class_path(component) for component in COMPONENTS)]


def resources() -> dict[str, Any]:
    """Return a site's `local/resources.json`.

    Nothing private may ever be added here: FLARE sends unknown top-level keys to every other site. Error
    logs stay at the site because their streaming is on unless a site says no.
    """
    return {
        "format_version": 2,
        "allow_log_streaming": False,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": allowed_classes(),
    }


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TEMPLATE
    write_json(target, resources())
    print(target)
