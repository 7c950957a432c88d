# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate RUN -f site.yaml`: an adapter is tested at sites, and its scores are printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medflare.cli.output import ItemBatch, print_json

if TYPE_CHECKING:
    from medflare.core.run_record import EvaluationRecord
    from medflare.data.settings.site import SiteConfig
    from medflare.reporting.score_rows import ScoreRow
    from medflare.tasks.scoring import EvaluationOptions

    Test = Callable[[SiteConfig, EvaluationOptions], EvaluationRecord]
    Rows = Callable[[list[EvaluationRecord]], list[ScoreRow]]

UNNAMED = "unnamed"
"""A site.yaml of one site without a name, where --sites gives it none."""


def test_adapter(
    named: Path,
    site_file: Path,
    sites: Sequence[str] | None,
    as_json: bool,
    options: EvaluationOptions,
    *,
    adapter: str,
    unseen: bool,
    **how: Any,
) -> None:
    """Test an adapter at sites and print its scores.

    Args:
        named: a run, one of its adapter folders, or an adapter folder that came without its run.
        unseen: the sites took no part in the training of a folder without its run.
        how: goes to `recipes.after_run`.
    """
    from rich.console import Console

    from medflare.cli.progress import progress_bar
    from medflare.cli.run import SHOWN
    from medflare.core.errors import ConfigError
    from medflare.data.settings.site import load_site, load_site_file
    from medflare.federation.server.scorer import SERVER
    from medflare.recipes.after_run import is_result_folder
    from medflare.reporting.metric_names import display_name
    from medflare.reporting.tables import results_table

    if adapter != "final" and is_result_folder(named):
        raise ConfigError(f"--adapter {adapter}: {named} is an adapter already; leave the option out.")
    test, rows_to_show, words = _of_folder(named, unseen, how) or _of_run(
        named, adapter, unseen, options, how
    )
    known = sorted(set(load_site_file(site_file)) - {SERVER})
    nameless = known == [""]  # a hospital's own file, whose name FLARE knows
    if not nameless and (unknown := [name for name in sites or () if name not in known]):
        raise ConfigError(f"--sites {', '.join(unknown)}: not in {site_file}. It has: {', '.join(known)}.")
    chosen = sites or ([UNNAMED] if nameless else known)
    evaluations, batch = [], ItemBatch()
    for name in chosen:
        with batch.item(name):
            site = load_site(site_file, name)
            with progress_bar(f"testing at {name}") as progress:
                evaluations.append(test(site, replace(options, progress=progress)))
    batch.require_some()
    if as_json:
        print_json([item.model_dump() for item in evaluations])
        batch.finish()
        return
    console = Console()
    if words:
        console.print(words)
    rows = [row for row in rows_to_show(evaluations) if row.site in chosen and row.split == how["split"]]
    console.print(results_table(rows, SHOWN))
    for metric, why in {m: w for item in evaluations for m, w in item.skipped_metrics.items()}.items():
        console.print(f"{display_name(metric)}: {why}", style="dim")
    batch.finish()


def _of_folder(named: Path, unseen: bool, how: dict[str, Any]) -> tuple[Test, Rows, str] | None:
    """Return how an adapter folder without its run is tested and shown; None where there is a run."""
    from medflare.recipes.after_run import is_result_folder, result_method, score_folder
    from medflare.recipes.result_origin import record_of
    from medflare.reporting.score_rows import ScoreRow

    if not is_result_folder(named) or record_of(named) is not None:
        return None
    method, has_adapter = result_method(named), (named / "adapter_config.json").is_file()

    def test(site: SiteConfig, options: EvaluationOptions) -> EvaluationRecord:
        return score_folder(named, site, took_part=not unseen, options=options, **how)

    def rows(evaluations: list[EvaluationRecord]) -> list[ScoreRow]:
        return [ScoreRow.of(item, method.task, method.name, has_adapter) for item in evaluations]

    words = f"{named} came without its run; predictions lie in {named.parent / 'evaluation'}."
    if not unseen:
        words += " A site's split `test` alone is tested; --unseen says that the sites took no part."
    return test, rows, words


def _of_run(
    named: Path, adapter: str, unseen: bool, options: EvaluationOptions, how: dict[str, Any]
) -> tuple[Test, Rows, str]:
    """Return how an adapter of a run is tested and shown."""
    from medflare.core.errors import ConfigError
    from medflare.core.run_record import read_record
    from medflare.recipes.after_run import is_result_folder, locate, score_site
    from medflare.recipes.result_origin import record_of
    from medflare.reporting.score_rows import rows_of

    kept = record_of(named) if is_result_folder(named) else None
    record_path, record = kept or (locate(named), read_record(locate(named)))
    if kept is not None:
        artefacts = {(record_path.parent / path).resolve(): kind for kind, path in record.artefacts.items()}
        adapter = artefacts[named.resolve()]
    if unseen:
        raise ConfigError(f"--unseen: {record_path} says who took part; leave it out.")

    def test(site: SiteConfig, options: EvaluationOptions) -> EvaluationRecord:
        return score_site(record_path, site, adapter=adapter, options=options, **how)  # type: ignore[arg-type]

    otherwise = [
        *([f"the first {options.limit} records of each site"] if options.limit is not None else []),
        *([f"the {adapter} adapter"] if adapter != "final" else []),
    ]

    def rows(evaluations: list[EvaluationRecord]) -> list[ScoreRow]:
        shown = read_record(record_path)
        return rows_of([shown.model_copy(update={"evaluations": evaluations}) if otherwise else shown])

    what = ", ".join(otherwise)
    return test, rows, f"{what[0].upper()}{what[1:]}; not added to the run's record." if what else ""
