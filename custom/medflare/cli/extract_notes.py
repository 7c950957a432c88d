# SPDX-License-Identifier: Apache-2.0
"""The notes that `medflare extract` marks: of text files, or of a site.yaml in any of its formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from medflare.cli.extract_totals import ExtractionTotals

if TYPE_CHECKING:
    from medflare.data.records import Note
    from medflare.data.settings.site import SiteConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NotesToMark:
    """Notes of files or of a site.

    Attributes:
        notes: each with its file, None where a table or database holds many.
        backbone: the folder of the site's own base model.
        ids: the name that a note has for its file -> its id at the site, where that cannot be one.
        replaced: kind -> identifiers in whose place surrogates stand, where the site says so.
    """

    notes: list[tuple[Path | None, Note]]
    backbone: Path | None = None
    ids: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)


def notes_to_mark(
    files: Sequence[Path],
    site_file: Path | None,
    site: str | None,
    totals: ExtractionTotals,
    file_of_each: bool,
) -> NotesToMark:
    """Return the notes of files or of a site; what cannot be read goes to `totals` and to standard error.

    Args:
        file_of_each: a file is written of each note, so that the ids of a site become names of files.

    Raises:
        ConfigError: both were named, or neither; or the site.yaml does not say which site.
        DataError: no note can be read.
    """
    from medflare.core.errors import ConfigError
    from medflare.core.file_names import names_for_ids

    if bool(files) == (site_file is not None):
        raise ConfigError("Name text files or folders of them, or a site.yaml with --site-file.")
    if site_file is None:
        if site is not None:
            raise ConfigError(f"--site {site}: goes with --site-file, which says where the site's notes are.")
        return NotesToMark(notes=_of_files(files, totals))
    config = _site(site_file, site)
    notes, replaced = _of_site(config, totals)
    ids = [note.note_id for note in notes]
    names = names_for_ids(ids) if file_of_each else ids
    return NotesToMark(
        notes=[(None, replace(note, note_id=name)) for note, name in zip(notes, names, strict=True)],
        backbone=config.backbone.folder,
        ids={name: id_ for name, id_ in zip(names, ids, strict=True) if name != id_},
        replaced=replaced,
    )


def _site(path: Path, name: str | None) -> SiteConfig:
    from medflare.core.errors import ConfigError
    from medflare.data.settings.site import load_site, load_site_file

    if name is not None:
        return load_site(path, name)
    sites = load_site_file(path)
    if len(sites) > 1:
        raise ConfigError(f"{path}: has the sites {', '.join(sorted(sites))}; choose one with --site.")
    return next(iter(sites.values()))


def _of_site(config: SiteConfig, totals: ExtractionTotals) -> tuple[list[Note], dict[str, int]]:
    """Return the notes of a site without the marks they have, and what was replaced in them."""
    from medflare.core.errors import DataError
    from medflare.data.load import load_cohort

    cohort = load_cohort(config)
    if not cohort.notes:
        folders = ", ".join(str(part.root) for part in config.cohort)
        raise DataError(f"{folders}: holds no clinical notes. Entities are extracted from notes alone.")
    for item in cohort.skipped:
        _leave_out(totals, item.record, item.reason, item.detail)
    unmarked = [
        replace(note, split="", entities=(), relations=(), tasks=(), annotated=None) for note in cohort.notes
    ]
    return unmarked, dict(cohort.identifiers.most_common())


def _of_files(paths: Sequence[Path], totals: ExtractionTotals) -> list[tuple[Path | None, Note]]:
    from medflare.core.errors import DataError
    from medflare.data.records import RecordError
    from medflare.tasks.extraction.annotation_files import read_note
    from medflare.tasks.output_files import distinct_names

    files = [file for path in paths for file in (_texts(path) if path.is_dir() else [path])]
    read: list[tuple[Path | None, Note]] = []
    for path, name in distinct_names(files).items():
        try:
            read.append((path, read_note(path, name)))
        except RecordError as error:
            _leave_out(totals, str(path), error.reason, str(error))
    if not read:
        raise DataError(
            f"none of {len(files)} file(s) could be read: {', '.join(map(str, paths))}. Expected clinical "
            "notes as plain text in UTF-8."
        )
    return read


def _texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.txt") if path.is_file() and path.name[0] != ".")


def _leave_out(totals: ExtractionTotals, name: str, reason: str, detail: str) -> None:
    totals.left_out.append({"file": name, "reason": reason, "detail": detail})
    typer.secho(f"left out: {name}: {reason}. {detail}.", fg=typer.colors.YELLOW, err=True)
