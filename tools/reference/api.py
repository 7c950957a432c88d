# SPDX-License-Identifier: Apache-2.0
"""docs/reference/api.md: the contracts; mkdocstrings fills in their docstrings when the site is built."""

from __future__ import annotations

ROOMS: dict[str, tuple[str, ...]] = {
    "Contracts": (
        "medflare.core.learner",
        "medflare.core.method",
        "medflare.core.task",
        "medflare.core.plan",
        "medflare.core.update",
        "medflare.core.tensors",
        "medflare.core.errors",
    ),
    "Aggregation": ("medflare.aggregation.base", "medflare.aggregation.capabilities"),
    "Learners": ("medflare.learners.registry",),
    "Adapters": ("medflare.models.adapters.base", "medflare.models.adapters.registry"),
    "Protections": ("medflare.protections.base",),
    "Records": ("medflare.core.run_record",),
    "Using a result": ("medflare.models.report_result",),
}
"""Room -> the modules that somebody who extends medflare, or uses its results, imports."""


def page() -> str:
    """Return the page."""
    parts = [
        "# API",
        "The modules that somebody who extends medflare, or uses its results, imports. Everything else may "
        "change without notice.",
    ]
    for room, modules in ROOMS.items():
        parts.append(f"## {room}")
        parts += [f"::: {module}\n    options:\n      heading_level: 3" for module in modules]
    return "\n\n".join(parts) + "\n"
