# SPDX-License-Identifier: Apache-2.0
"""`medflare cohort init`: from a folder of files to a commented site.yaml, with examples to check it by."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.data.cohort import Cohort
    from medflare.data.detection.guess import CohortGuess

EXAMPLES = 5
SHOWN = 100
"""Characters of a text that an example shows."""
HEAD = (
    "# Written by `medflare cohort init`. Check every line with a comment: it was guessed.",
    "# All settings: docs/reference/site_yaml.md. See what is read: medflare cohort inspect <this file>",
)


@plain_errors
def init(
    folders: list[Path] = typer.Argument(
        ..., help="Folder with the hospital's files; several, for the simulator, become one site each."
    ),
    out: Path = typer.Option(Path("site.yaml"), "--out", "-o", help="File to write."),
    name: str | None = typer.Option(None, "--name", help="The site's name; default the folder's."),
    split_by: str | None = typer.Option(
        None, "--split-by", help="For the simulator: a column whose values become one site each."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a file that is already there."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Looks at a folder, guesses format, columns, identifiers and splits, and writes a commented site.yaml.

    Five records are shown as they will be read. Check them: a guess is no more than that.

    [bold]Example[/bold]: medflare cohort init /data/cxr
    [bold]Example[/bold]: medflare cohort init /data/north /data/south
    [bold]Example[/bold]: medflare cohort init /data/export --split-by hospital --out studies.yaml
    """
    from medflare.core.errors import ConfigError, DataError
    from medflare.data.cohort_summary import summarise

    if out.exists() and not overwrite:
        raise ConfigError(f"{out}: is there already; --overwrite replaces it, --out names another file.")
    if len(folders) > 1 and (split_by is not None or name is not None):
        raise ConfigError("--name and --split-by speak of one folder; several become one site each.")
    guesses = {folder.resolve(): _guess(folder) for folder in folders}
    (first, guess), *further = guesses.items()
    if split_by is not None and split_by not in guess.sites:
        columns = ", ".join(guess.sites) or "none"
        raise ConfigError(f"--split-by {split_by}: no column of hospitals; columns that seem one: {columns}.")
    values = guess.sites[split_by] if split_by is not None else ()
    text = (
        file_of_folders(guesses) if further else site_file(guess, first, name or first.name, split_by, values)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    cohorts, problems = _read(out)
    if as_json:
        summaries = {site: summarise(cohort) for site, cohort in cohorts.items()}
        facts = {"file": str(out), "problems": problems, "cohorts": summaries}
        each = {_site_name(folder.name): _facts(found) for folder, found in guesses.items()}
        print_json(facts | ({"folders": each} if further else _facts(guess)))
    else:
        _show(guesses, cohorts, out)
    for problem in problems:
        typer.secho(problem, fg=typer.colors.RED, err=True)
    if problems:
        raise typer.Exit(DataError.exit_code)


def _guess(folder: Path) -> CohortGuess:
    from medflare.core.config import parse
    from medflare.data.detection.formats import guess_cohort
    from medflare.data.detection.label_map import with_label_map
    from medflare.data.detection.split import with_split
    from medflare.data.detection.visits import with_visits
    from medflare.data.readers import read_source
    from medflare.data.settings.cohort import CohortConfig

    guess = guess_cohort(folder)
    document = {"format": guess.format, "root": str(folder.resolve()), **guess.settings}
    source = read_source(parse(CohortConfig, document, str(folder)))
    for more in (with_label_map, with_split, with_visits):
        guess = more(guess, source)
    return guess


def _read(file: Path) -> tuple[dict[str, Cohort], list[str]]:
    """Return the cohorts of a site file, and what keeps a site from being read as it stands."""
    from medflare.core.errors import DataError
    from medflare.data.load import load_cohort
    from medflare.data.settings.site import load_site_file

    cohorts, problems = dict[str, "Cohort"](), list[str]()
    for site, config in load_site_file(file).items():
        try:
            cohorts[site] = load_cohort(config)
        except DataError as error:  # most often more than max_skipped; the file stays, to be mended
            problems.append(f"{site}: {error}")
            tolerant = [part.model_copy(update={"max_skipped": 1.0}) for part in config.cohort]
            with suppress(DataError):
                cohorts[site] = load_cohort(config.model_copy(update={"cohort": tuple(tolerant)}))
    return cohorts, problems


def _facts(guess: CohortGuess) -> dict[str, Any]:
    return {
        "format": guess.format,
        "settings": guess.settings,
        "optional": guess.optional,
        "reasons": guess.reasons,
        "remarks": list(guess.remarks),
    }


def file_of_folders(guesses: Mapping[Path, CohortGuess]) -> str:
    """Return the text of a site.yaml with one site for each folder, named after it.

    Raises:
        ConfigError: two folders have one name.
    """
    from medflare.core.errors import ConfigError

    body: list[str] = ["sites:"]
    for folder, guess in guesses.items():
        name = f"  {_scalar(_site_name(folder.name))}:"
        if name in body:
            raise ConfigError(f"{folder}: another folder is named {folder.name} too; rename one of them.")
        body += [name, *(f"    {line}" for line in _cohort_lines(guess, folder, {}))]
    return "\n".join([*HEAD, *body]) + "\n"


def site_file(
    guess: CohortGuess, folder: Path, name: str, column: str | None = None, values: tuple[str, ...] = ()
) -> str:
    """Return the text of a site.yaml: one site, or one for each value of a column."""
    head = list(HEAD)
    if not values:
        body = [f"name: {_scalar(_site_name(name))}", *_cohort_lines(guess, folder, {})]
        if guess.sites:
            columns = ", ".join(f"'{key}' ({len(found)} values)" for key, found in guess.sites.items())
            head.append(f"# A column names hospitals: {columns}. --split-by makes a site of each value.")
        return "\n".join([*head, *body, *_policy_lines()]) + "\n"
    body = ["sites:"]
    for value in values:
        lines = _cohort_lines(guess, folder, {"select": {column: value}})
        body += [f"  {_scalar(_site_name(value))}:", *(f"    {line}" for line in lines)]
    return "\n".join([*head, *body]) + "\n"


def _cohort_lines(guess: CohortGuess, folder: Path, more: Mapping[str, Any]) -> list[str]:
    lines = ["cohort:", _line("format", guess.format, guess.reasons.get("format", ""), 2)]
    lines.append(_line("root", str(folder.resolve()), "", 2))
    for key, value in {**guess.settings, **more}.items():
        if isinstance(value, Mapping):
            lines.append(f"  {key}:")
            lines += [_line(k, v, guess.reasons.get(f"{key}.{k}", ""), 4) for k, v in value.items()]
        else:
            lines.append(_line(key, value, guess.reasons.get(key, ""), 2))
    for key, value in guess.optional.items():
        lines.append(f"  # {_line(key, value, guess.reasons.get(key, ''), 0)}")
    return lines


def _policy_lines() -> list[str]:
    return [
        "policy:  # what this hospital allows; a job may ask for less, never for more",
        "  min_sites: 3  # no run with fewer hospitals than these, this one counted; 1 for a trial",
        "  min_examples: 5  # nothing leaves that rests on fewer examples",
    ]


def _line(key: str, value: Any, reason: str, indent: int) -> str:
    return f"{' ' * indent}{key}: {_scalar(value)}" + (f"  # {reason}" if reason else "")


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n...\n").strip()


def _site_name(text: str) -> str:
    """Return a name that FLARE takes: letters, digits, dashes."""
    plain = unicodedata.normalize("NFKD", text.lower())
    ascii_letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    letters = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in ascii_letters)
    return "-".join(part for part in letters.split("-") if part) or "site-1"


def _show(guesses: Mapping[Path, CohortGuess], cohorts: Mapping[str, Cohort], out: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from medflare.cli.cohort_view import print_summary
    from medflare.data.cohort_summary import summarise

    console = Console()
    for folder, guess in guesses.items():
        console.print(f"{folder.name}: [bold]{guess.format}[/bold]: {guess.reasons.get('format', '')}")
    for site, cohort in cohorts.items():
        summary = summarise(cohort)
        print_summary(summary | {"name": site, "labels": {}})
        table = Table(
            "record", "patient", "split", "files", "text", title="as it is read", title_justify="left"
        )
        for row in examples(cohort):
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    for folder, guess in guesses.items():
        for key, value in guess.optional.items():
            console.print(f"{folder.name}: '{key}: {_scalar(value)}' {guess.reasons[key]}", style="yellow")
    for remark in dict.fromkeys(remark for guess in guesses.values() for remark in guess.remarks):
        console.print(escape(remark), style="yellow")
    console.print(f"Written: {out}. Check it, then: medflare cohort inspect {out}")


def examples(cohort: Cohort) -> list[tuple[str, str, str, str, str]]:
    """Return record, patient, split, files and the beginning of the text of the first records."""
    rows = [
        (study.study_id, study.patient_id, study.split, ", ".join(p.name for p in study.images), study.report)
        for study in cohort.studies[:EXAMPLES]
    ]
    rows += [(note.note_id, note.patient_id, note.split, "", note.text) for note in cohort.notes[:EXAMPLES]]
    rows += [(q.question_id, "", q.split, "", q.text) for q in cohort.questions[:EXAMPLES]]
    rows += [(s.summary_id, s.patient_id, s.split, "", s.source) for s in cohort.summaries[:EXAMPLES]]
    return [(*row[:4], _short(row[4])) for row in rows[:EXAMPLES]]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
