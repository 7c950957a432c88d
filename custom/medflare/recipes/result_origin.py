# SPDX-License-Identifier: Apache-2.0
"""Finds a result folder from what a user names, and says which model lies in it."""

from __future__ import annotations

from pathlib import Path

from medflare.core.errors import DataError
from medflare.core.origin import Origin
from medflare.core.run_record import RunRecord, read_record
from medflare.core.tensor_fingerprint import SHOWN, tensor_fingerprint
from medflare.models.plausibility import FILE
from medflare.recipes.after_run import kept_adapter, locate


def adapter_folder(result: Path) -> Path:
    """Return a result/adapter folder, given as it is or through the run it belongs to.

    Raises:
        DataError: the run kept no final adapter.
    """
    if (result / "adapter_config.json").is_file():
        return result
    record_path = locate(result)
    return kept_adapter(record_path, read_record(record_path), "final")


def record_of(result: Path) -> tuple[Path, RunRecord] | None:
    """Return path and record of the run that a result belongs to; None where only a folder is at hand."""
    folder = adapter_folder(result)
    above = folder.resolve().parent.parent
    for path in (above / "run.json", *([] if folder == result else [locate(result)])):
        if path.is_file():
            record = read_record(path)
            kept = {(path.parent / artefact).resolve() for artefact in record.artefacts.values()}
            if folder.resolve() in kept:
                return path, record
    return None


def reference_files(result: Path, given: Path | None, personalised: Path | None) -> list[Path]:
    """Return the files that say what the training images looked like.

    Args:
        given: the file, or the folder of a site that holds it; it alone is taken.
        personalised: a site's own adapter, beside which that site's file lies.

    Returns:
        Without `given`: the site's own, or those of all sites of the run that lie on this disk, as in a
        simulator; a hospital's stays there.

    Raises:
        DataError: `given` names none.
    """
    if given is not None:
        file = given / FILE if given.is_dir() else given
        if not file.is_file():
            raise DataError(f"--reference {given}: expected a site's result folder with {FILE} in it.")
        return [file]
    if personalised is not None:
        return [file] if (file := personalised.parent / FILE).is_file() else []
    found = record_of(result)
    if found is None:
        return []
    path, record = found
    sites = path.resolve().parent.parent.parent
    files = [sites / name / path.parent.name / "result" / FILE for name in sorted(record.sites)]
    return [file for file in files if file.is_file()]


def origin_of(result: Path) -> Origin:
    """Return what a draft says of its model: run, method, base model, and who trained it on how much."""
    adapter = tensor_fingerprint(adapter_folder(result))
    found = record_of(result)
    if found is None:
        return Origin(adapter=adapter)
    record = found[1]
    return Origin(
        adapter=adapter,
        run_id=record.run_id,
        method=record.method,
        backbones=tuple(
            sorted({f"{site.backbone} {site.fingerprint[:SHOWN]}" for site in record.sites.values()})
        ),
        trained_on={name: site.examples.get("train", 0) for name, site in sorted(record.sites.items())},
    )
