# SPDX-License-Identifier: Apache-2.0
"""`medflare rules | methods`: what a job can name, from what the code says of itself."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

WIDTH = 200
"""Columns where output is not a terminal: one line for most entries, so that `grep` finds whole ones."""


@plain_errors
def rules(
    markdown: bool = typer.Option(False, "--markdown", help="Print docs/reference/rules.md."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Lists the aggregation rules: what each needs, does, takes as settings, and where it is from.

    [bold]Example[/bold]: medflare rules --json
    """
    from medflare.aggregation import RULES
    from medflare.aggregation.facts import rule_listing
    from medflare.recipes.rules_page import page

    if markdown:
        typer.echo(page(), nl=False)
        return
    listings = [rule_listing(name) for name in sorted(RULES)]
    if as_json:
        print_json([asdict(rule) for rule in listings])
        return
    rows = [
        (r.name, r.needs, "yes" if r.streams else "no", r.summary, ", ".join(s.name for s in r.settings))
        for r in listings
    ]
    _show("aggregation rules", ("rule", "needs", "streams", "what it does", "rule_settings"), rows)


@plain_errors
def methods(
    jobs: Path | None = typer.Option(
        None, "--jobs", help="Folder of job folders; default: those that came with medflare."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Lists the methods: what each reads and trains, its variants, the rules that fit, and the jobs.

    [bold]Example[/bold]: medflare methods --json
    """
    from medflare.recipes.job_reader import installed_jobs

    listings = method_listing(jobs or installed_jobs())
    if as_json:
        print_json(listings)
        return
    rows = [
        (m["name"], m["reads"], m["summary"], ", ".join(m["variants"]), ", ".join(m["jobs"]))
        for m in listings
    ]
    _show("methods", ("method", "reads", "what it does", "variants", "jobs"), rows)


@plain_errors
def plugins(as_json: bool = JSON_OPTION) -> None:
    """Lists what other packages offer (rules, methods, readers, metrics, protections), and what is admitted.

    A package is admitted by `policy: plugins` in site.yaml, or by MEDFLARE_PLUGINS at a server or for a
    command.

    [bold]Example[/bold]: MEDFLARE_PLUGINS=medflare-example medflare plugins
    """
    from medflare.core.plugins import installed_plugins

    found_plugins = installed_plugins()
    if as_json:
        print_json([asdict(plugin) for plugin in found_plugins])
    elif not found_plugins:
        typer.echo("No installed package offers anything. docs/how-to/plugins.md says how one does.")
    else:
        rows = [
            (
                plugin.group,
                plugin.name,
                f"{plugin.package} {plugin.version}",
                "yes" if plugin.admitted else "no",
            )
            for plugin in found_plugins
        ]
        _show("other packages", ("offers", "name", "package", "admitted"), rows)


def method_listing(jobs: Path) -> list[dict[str, Any]]:
    """Return facts of every method, JSON types; each variant with its changed settings and fitting rules."""
    from medflare.aggregation.facts import citation_of
    from medflare.learners.registry import METHODS, task_of

    used = _jobs(jobs)
    out = []
    for name, method in sorted(METHODS.items()):
        facts = method.facts
        out.append(
            {
                "name": name,
                "reads": task_of(name).reads,
                "summary": facts.summary,
                "source": asdict(citation_of(facts.source)),
                "metrics": facts.metrics,
                "adapters": _adapters() if facts.lora else {},
                "variants": {
                    variant: {"changes": changes, "rules": _fitting(name, variant)}
                    for variant, changes in method.variants.items()
                },
                "jobs": used.get(name, []),
            }
        )
    return out


def _adapters() -> dict[str, Any]:
    """Name in `peft.method` -> what learns and travels, where it is from, what it cannot do."""
    from medflare.aggregation.facts import citation_of
    from medflare.models.adapters.registry import PEFT_METHODS

    return {
        name: {
            "summary": row.summary,
            "source": asdict(citation_of(row.source)),
            "peft": row.peft_opens,
            "dual": row.several_active,
            "quantised": row.quantised,
            "gradient_checkpointing": row.gradient_checkpointing,
        }
        for name, row in PEFT_METHODS.items()
    }


def _fitting(method: str, variant: str) -> list[str]:
    """Return the rules that fit a variant in the clear; `influence (client)` is influence of mode client."""
    from medflare.recipes.combinations import problems
    from medflare.recipes.rules_page import rule_choices

    settings = {"variant": variant}
    return [
        row
        for row, (rule, given) in rule_choices().items()
        if not problems(rule, method, settings, "bfloat16", rule_settings=given)
    ]


def _jobs(folder: Path) -> dict[str, list[str]]:
    """Return method -> names of the job folders in `folder` that use it."""
    from medflare.recipes.job_reader import read_job

    used: dict[str, list[str]] = {}
    for meta in sorted(folder.glob("*/meta.json")):
        used.setdefault(read_job(meta.parent).method, []).append(meta.parent.name)
    return used


def _show(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
