# SPDX-License-Identifier: Apache-2.0
"""One pass over a data set into an index that later passes stream: the long part of a benchmark, done once.

An index lies in `OUT.index/<source>.jsonl`; `<source>.json` beside it has the digests of the lists that it
was made of. While these agree the index is used again, so that a stopped command goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from medflare.benchmark.rows import (
    WHERE,
    BenchmarkRow,
    chexpert_rows,
    from_line,
    lists_of,
    mimic_rows,
    to_line,
)
from medflare.benchmark.settings import BenchmarkSettings
from medflare.core.config import parse
from medflare.core.errors import DataError
from medflare.data.readers import read_source
from medflare.data.settings.cohort import CohortConfig
from medflare.labelling.labels import label_report

VERSION = 1
CHECKED = 200
"""Images of a source that are looked for."""
Say = Callable[[str], None]


def build_index(source: str, root: Path, settings: BenchmarkSettings, folder: Path, say: Say) -> Path:
    """Return the index of a source, made anew unless it is there and its lists have not changed.

    Raises:
        DataError: lists, reports or images are missing; nothing half written remains.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, facts = folder / f"{source}.jsonl", folder / f"{source}.json"
    lists = {file.name: digest_of(file) for file in lists_of(source, root)}
    made_of = {"version": VERSION, "root": str(root), "reports": str(settings.reports), "lists": lists}
    made_of["demographics"] = str(settings.demographics)
    if path.is_file() and facts.is_file() and json.loads(facts.read_text()).get("made_of") == made_of:
        say(f"{source}: the index is there")
        return path
    partial = path.with_suffix(".partial")
    count = 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            for row in _rows(source, root, settings):
                file.write(to_line(row))
                count += 1
                if count % 50_000 == 0:
                    say(f"{source}: {count} studies read")
        if not count:
            raise DataError(f"{root}: lists no study. It is {WHERE[source]}.")
        check_images(source, root, partial, count)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    facts.write_text(json.dumps({"made_of": made_of, "studies": count}, indent=1), encoding="utf-8")
    say(f"{source}: {count} studies")
    return path


def _rows(source: str, root: Path, settings: BenchmarkSettings) -> Iterator[BenchmarkRow]:
    if source == "mimic_cxr":
        return mimic_rows(root, settings.reports, settings.demographics)
    if source == "chexpert_plus":
        return chexpert_rows(root)
    return iu_rows(root, settings.setting == "fedvit-gpt2")


def iu_rows(root: Path, split_needed: bool) -> Iterator[BenchmarkRow]:
    """Yield IU X-Ray's studies: 7,470 images at most, so the usual reader reads them all.

    Raises:
        DataError: R2Gen's annotation.json is needed for its split, and is not there.
    """
    annotated = any(path.name == "annotation.json" for path in lists_of("iu_xray", root))
    if split_needed and not annotated:
        raise DataError(
            f"{root}: has no annotation.json, R2Gen's split of IU X-Ray, which FedViT-GPT2 used. Expected "
            f"{root}/annotation.json beside images/; it comes with the data that R2Gen's README links to."
        )
    layout = {"format": "r2gen"} if annotated else {"format": "iu_xray", "sections": "findings"}
    config = parse(CohortConfig, {"root": str(root), **layout}, str(root))
    for study in read_source(config).studies:
        yield BenchmarkRow(
            study_id=study.study_id,
            patient_id=study.patient_id,
            images=tuple(os.path.relpath(path, root) for path in study.images),
            findings=" ".join(study.report.split()),
            split=study.split,
            codes=study.codes or label_report(study.report),
            view=study.view,
        )


def read_index(path: Path) -> Iterator[BenchmarkRow]:
    """Yield the rows of an index, one at a time."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield from_line(line)


def check_images(source: str, root: Path, index: Path, count: int) -> None:
    """Look for the first image of CHECKED studies spread over an index.

    Raises:
        DataError: some are missing; names one as it was expected.
    """
    step, looked, missing = max(count // CHECKED, 1), 0, []
    for number, row in enumerate(read_index(index)):
        if number % step or not row.images:
            continue
        looked += 1
        path = root / row.images[0]
        if not path.is_file() and not path.with_suffix(".png").is_file():
            missing.append(path)
    if missing:
        raise DataError(
            f"{root}: {len(missing)} of {looked} images that were looked for are missing, for instance "
            f"{missing[0]}. It is {WHERE[source]}."
        )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()
