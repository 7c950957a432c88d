# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort partition` and `make`: hospitals from one pooled cohort, and synthetic ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

ALPHA = 0.5
"""Concentration of a partition by dirichlet, where none is given."""
OVERWRITE = typer.Option(
    False, "--overwrite", help="Replace what this command made there before, with all that is in the folder."
)


@plain_errors
def partition(
    source: Path = typer.Argument(..., help="site.yaml of one site: the pooled cohort."),
    out: Path = typer.Argument(..., help="Folder for the records of each site and a site.yaml."),
    sites: int = typer.Option(3, "--sites", min=2, help="How many sites."),
    method: str | None = typer.Option(
        None,
        "--method",
        help="Studies: random_stratified (the default), report_clusters, dirichlet. Questions and summaries: "
        "iid (the default), class, dirichlet. Notes: iid.",
    ),
    alpha: float | None = typer.Option(
        None, "--alpha", help="Concentration of dirichlet, 0.5 by default; small is uneven."
    ),
    seed: int = typer.Option(0, "--seed", min=0, help="Another seed deals the records otherwise."),
    scanners: bool | None = typer.Option(
        None,
        "--scanners/--no-scanners",
        help="Studies: give every site its own blur, contrast and brightness.",
    ),
    by_findings: bool = typer.Option(
        False, "--by-findings", help="Summaries: group them by their rarest finding instead of their column."
    ),
    overwrite: bool = OVERWRITE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Deals one pooled cohort to several sites, by patient, and reports how much they differ.

    What its site.yaml says beside the records (model, knowledge, policy, device) is said for each of them.

    [bold]Examples[/bold]: medflare cohort partition iu.yaml parts --sites 10 --method dirichlet --alpha 0.3
    medflare cohort partition medmcqa.yaml parts --sites 20 --method class
    """
    from medflare.cli.cohort_view import print_heterogeneity
    from medflare.core.errors import ConfigError
    from medflare.data.load import load_cohort
    from medflare.data.partition.partitioning import PARTITION, SITE_FILE, settings_of_pool
    from medflare.data.partition.studies import PartitionPlan
    from medflare.data.settings.site import load_site_file

    configs = load_site_file(source)
    if len(configs) != 1:
        raise ConfigError(f"{source}: describes {len(configs)} sites; expected one, the pooled cohort.")
    (config,) = configs.values()
    cohort = load_cohort(config)
    names = tuple(f"site-{i + 1}" for i in range(sites))
    texts = bool(cohort.questions or cohort.summaries)
    if by_findings and not texts:
        raise ConfigError("--by-findings goes with summaries; studies are dealt by their labels anyway.")
    if alpha is not None and method != "dirichlet":
        raise ConfigError(
            f"--alpha {alpha:g}: goes with --method dirichlet; no other method has a concentration."
        )
    if scanners is not None and not cohort.studies:
        raise ConfigError("--scanners and --no-scanners go with studies; texts have no scanner.")
    alpha = ALPHA if alpha is None else alpha
    with PARTITION.building(out, overwrite) as folder:
        more = settings_of_pool(config, folder)
        if cohort.notes:
            facts = _deal_notes(cohort, more, folder, names, method or "iid", seed)
        elif texts:
            facts = _deal_texts(cohort, more, folder, names, method or "iid", alpha, seed, by_findings)
        else:
            plan = PartitionPlan(
                sites=names,
                method=method or "random_stratified",
                alpha=alpha,
                seed=seed,
                scanners=scanners is not False,
            )
            facts = _deal_studies(cohort, config.cohort, more, folder, plan)
    path = out / SITE_FILE
    if as_json:
        print_json({"site_file": str(path), **facts})
        return
    print_heterogeneity(facts)
    typer.echo(f"site file: {path}")


def _deal_studies(cohort: Any, pool: Any, more: dict[str, Any], out: Path, plan: Any) -> dict[str, Any]:
    from medflare.data.heterogeneity import heterogeneity
    from medflare.data.load import load_cohort
    from medflare.data.partition.studies import one_reading, write_partition
    from medflare.data.settings.site import load_site_file

    path = write_partition(cohort.studies, plan, out, one_reading(pool), more)
    dealt = {name: load_cohort(config).studies for name, config in load_site_file(path).items()}
    return heterogeneity({name: studies for name, studies in dealt.items() if studies})


def _deal_notes(
    cohort: Any, more: dict[str, Any], out: Path, sites: tuple[str, ...], method: str, seed: int
) -> dict[str, Any]:
    from medflare.core.errors import ConfigError
    from medflare.data.partition.notes import partition_notes, write_notes_partition
    from medflare.data.partition.texts import TextPlan
    from medflare.data.text_heterogeneity import notes_heterogeneity

    if cohort.studies or cohort.questions or cohort.summaries:
        raise ConfigError("the pooled cohort has notes and other records; deal them one after the other.")
    plan = TextPlan(sites=sites, method=method, seed=seed)
    write_notes_partition(cohort.notes, plan, out, more)
    return notes_heterogeneity(partition_notes(cohort.notes, plan))


def _deal_texts(
    cohort: Any,
    more: dict[str, Any],
    out: Path,
    sites: tuple[str, ...],
    method: str,
    alpha: float,
    seed: int,
    by_findings: bool,
) -> dict[str, Any]:
    from medflare.core.errors import ConfigError
    from medflare.data.partition.texts import (
        TextPlan,
        grouped_by_findings,
        partition_texts,
        write_text_partition,
    )
    from medflare.data.text_heterogeneity import text_heterogeneity

    if cohort.questions and cohort.summaries:
        raise ConfigError("the pooled cohort has questions and summaries; deal them one after the other.")
    if by_findings and cohort.questions:
        raise ConfigError("--by-findings goes with summaries; questions are grouped by their column.")
    records = cohort.questions or cohort.summaries
    if by_findings:
        records = grouped_by_findings(records)
    plan = TextPlan(sites=sites, method=method, alpha=alpha, seed=seed)
    write_text_partition(records, plan, out, more)
    return text_heterogeneity(partition_texts(records, plan))


@plain_errors
def make(
    out: Path = typer.Argument(..., help="Folder to write the hospitals into."),
    patients: int = typer.Option(
        0, "--patients", min=0, help="Patients of each hospital; 0 for each one's own number."
    ),
    visits: int = typer.Option(
        1,
        "--visits",
        min=1,
        help="T planned visits of each patient; above 1 findings change and reports say how.",
    ),
    size: int | None = typer.Option(None, "--size", min=32, help="Pixels of a side, 128 by default."),
    seed: int = typer.Option(0, "--seed", min=0, max=999, help="Other patients, same hospitals."),
    sheet: bool = typer.Option(True, help="Write contact_sheet.png too."),
    notes: bool = typer.Option(
        False, "--notes", help="Clinical notes with entities and modifiers, a patient each, no radiographs."
    ),
    questions: bool = typer.Option(False, "--questions", help="Multiple-choice questions about diseases."),
    summaries: bool = typer.Option(
        False, "--summaries", help="Findings and impressions; with --notes, notes and summaries."
    ),
    hospitals: int | None = typer.Option(
        None, "--hospitals", help="Questions and summaries: how many hospitals, 3 by default."
    ),
    dealt: str | None = typer.Option(
        None,
        "--partition",
        help="Questions and summaries: class (the default; each specialty or finding at one or two "
        "hospitals), iid or dirichlet.",
    ),
    alpha: float | None = typer.Option(
        None, "--alpha", help="Concentration of dirichlet, 0.3 by default; small is uneven."
    ),
    records: int | None = typer.Option(
        None,
        "--records",
        min=0,
        help="Questions or summaries a hospital trains on, on average; 0 or none for the usual number.",
    ),
    overwrite: bool = OVERWRITE,
    as_json: bool = JSON_OPTION,
) -> None:
    """Writes three synthetic hospitals, an unseen fourth, and a site.yaml for the simulator.

    With --questions or --summaries as many hospitals as you like, a vocabulary of their terms and the key
    of their knowledge graphs.

    [bold]Examples[/bold]: medflare cohort make cohorts --patients 300
    medflare cohort make visit-cohorts --visits 5
    medflare cohort make note-cohorts --notes
    medflare cohort make asked --questions --hospitals 20 --partition dirichlet --alpha 0.3
    """
    from medflare.synthetic.site_files import SYNTHETIC_HOSPITALS

    content = _hospitals_of_options(notes, questions, summaries, visits)
    of_texts = {"--hospitals": hospitals, "--partition": dealt, "--alpha": alpha, "--records": records}
    _refuse_without_effect(content, of_texts, size)
    with SYNTHETIC_HOSPITALS.building(out, overwrite) as folder:
        if content == "questions" or content in SUMMARIES:
            dealing = (
                3 if hospitals is None else hospitals,
                dealt or "class",
                0.3 if alpha is None else alpha,
            )
            counts, unit = _make_texts(folder, content, patients, *dealing, seed, records or 0)
        else:
            pixels = 128 if size is None else size
            counts, unit = _make_patients(folder, content, patients, visits, pixels, seed, sheet), "patients"
    if as_json:
        facts = {name: {unit: n, "folder": str(out / name)} for name, n in counts.items()}
        print_json({"site_file": str(out / "site.yaml"), "hospitals": facts})
        return
    for name, count in counts.items():
        typer.echo(f"{name}: {count} {unit.replace('_', ' ')} in {out / name}")
    typer.echo(f"site file: {out / 'site.yaml'}")


SUMMARIES = {"summaries": "chests", "summaries and notes": "notes"}
"""Kind of hospitals -> what their summaries are of."""


def _hospitals_of_options(notes: bool, questions: bool, summaries: bool, visits: int) -> str:
    """Return the hospitals that the options ask for; ConfigError where they ask for two sorts at once."""
    from medflare.core.errors import ConfigError

    if sum((notes and not summaries, questions, summaries, visits > 1)) > 1:
        raise ConfigError(
            "--visits, --notes, --questions and --summaries make different hospitals; give one, or "
            "--summaries with --notes."
        )
    if summaries:
        return "summaries and notes" if notes else "summaries"
    if questions or notes:
        return "questions" if questions else "notes"
    return "visits" if visits > 1 else "studies"


def _refuse_without_effect(content: str, of_texts: Mapping[str, object], size: int | None) -> None:
    """Raise ConfigError for options that the hospitals which were asked for have no use for."""
    from medflare.core.errors import ConfigError

    texts = content == "questions" or content in SUMMARIES
    given = [name for name, value in of_texts.items() if value is not None]
    if given and not texts:
        raise ConfigError(
            f"{', '.join(given)}: goes with --questions or --summaries, which make as many hospitals as you "
            "like. Of patients there are three hospitals and an unseen fourth."
        )
    if of_texts["--alpha"] is not None and of_texts["--partition"] != "dirichlet":
        raise ConfigError("--alpha: goes with --partition dirichlet; no other partition has a concentration.")
    if size is not None and content not in ("studies", "visits"):
        raise ConfigError(f"--size {size}: goes with radiographs; texts have no pixels.")


def _make_patients(
    out: Path, content: str, patients: int, visits: int, size: int, seed: int, sheet: bool
) -> dict[str, int]:
    """Write the visits and return the patients of each hospital."""
    from medflare.synthetic.demo import write_demo
    from medflare.synthetic.follow_up import write_follow_up_demo
    from medflare.synthetic.notes import write_notes_demo

    if content == "notes":
        return write_notes_demo(out, patients, seed)
    if content == "visits":
        return write_follow_up_demo(out, visits, patients, size, seed, sheet)
    return write_demo(out, patients, size, seed, sheet, workers=min(4, os.cpu_count() or 1))


def _make_texts(
    out: Path, content: str, patients: int, hospitals: int, dealt: str, alpha: float, seed: int, records: int
) -> tuple[dict[str, int], str]:
    """Write the texts; return the training records of each hospital and what they are."""
    from medflare.core.errors import ConfigError
    from medflare.synthetic.knowledge import write_questions_demo, write_summaries_demo

    if patients:
        raise ConfigError("--patients is of hospitals with patients; here it is --records.")
    settings: dict[str, Any] = {"alpha": alpha}
    if content == "questions":
        settings |= {"questions": records} if records else {}
        return write_questions_demo(out, hospitals, dealt, seed, **settings), "training_questions"
    settings |= {"kind": SUMMARIES[content]} | ({"reports": records} if records else {})
    return write_summaries_demo(out, hospitals, dealt, seed, **settings), "training_summaries"
