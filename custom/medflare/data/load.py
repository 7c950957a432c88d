# SPDX-License-Identifier: Apache-2.0
"""From site.yaml to a Cohort: reads, cleans, labels and splits, and counts what cannot be used.

One bad record never stops a run; too many of them do (`max_skipped`), before anything is trained.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from medflare.core.errors import DataError
from medflare.data.cohort import Cohort, check_skipped, counted_reasons
from medflare.data.counts import TextCounts
from medflare.data.deidentification import treat_identifiers
from medflare.data.grouped_split import split_by_group
from medflare.data.notes.inventory_mapping import map_source_notes
from medflare.data.notes.note_patients import name_patients
from medflare.data.pool import limit_records, pool_records
from medflare.data.readers import read_source
from medflare.data.readers.common import SourceRecords
from medflare.data.records import SPLITS, Study
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.data.splits import split_name
from medflare.data.text import clean_report
from medflare.data.visits.longitudinal import number_visits, patients_without_visits, prepare_visits
from medflare.labelling import labels as labelling


def load_cohort(site: SiteConfig, name: str = "") -> Cohort:
    """Return the usable records of a site; several cohorts in site.yaml are pooled.

    Raises:
        DataError: a source cannot be read at all, nothing usable is left, or more records than
            `max_skipped` allows are unusable.
    """
    cohort = Cohort(name=name or site.name)
    sources: list[tuple[str, Cohort]] = []
    for index, config in enumerate(site.cohort):
        part = _read_one(config, str(index) if len(site.cohort) > 1 else "")
        check_skipped(part, str(config.root))
        if config.limit is not None:
            part.studies = limit_records(part.studies, config.limit, config.split.seed)
            part.notes = limit_records(part.notes, config.limit, config.split.seed)
            part.questions = limit_records(part.questions, config.limit, config.split.seed)
            part.summaries = limit_records(part.summaries, config.limit, config.split.seed)
        sources.append((str(config.root), part))
        cohort.skipped += part.skipped
        cohort.records += part.records
        cohort.moved += part.moved
        cohort.allowed += part.allowed
        cohort.scanners |= part.scanners
        cohort.annotation.add(part.annotation)
        cohort.visits.add(part.visits)
        cohort.texts.add(part.texts)
        cohort.identifiers += part.identifiers
    cohort.studies, moved_studies = pool_records([(folder, part.studies) for folder, part in sources])
    cohort.notes, moved_notes = pool_records([(folder, part.notes) for folder, part in sources])
    cohort.questions, moved_questions = pool_records([(folder, part.questions) for folder, part in sources])
    cohort.summaries, moved_summaries = pool_records([(folder, part.summaries) for folder, part in sources])
    cohort.moved += moved_studies + moved_notes
    cohort.texts.groups_moved += moved_questions + moved_summaries
    if not cohort.count:
        where = ", ".join(str(config.root) for config in site.cohort)
        few = cohort.visits.patients_with_too_few
        why = f" {few} patient(s) have fewer visits than 'visits: fewest' asks for." if few else ""
        raise DataError(f"{where}: holds no usable record{counted_reasons(cohort.skipped)}.{why}")
    return cohort


def _read_one(config: CohortConfig, number: str) -> Cohort:
    """Read one source and check it record by record.

    Args:
        number: of the source where several are pooled, else "".
    """
    source = read_source(config)
    if config.patients is not None:
        name_patients(source, config.patients)
    if config.split.ignore_source:
        source.has_split = False
    identifiers = treat_identifiers(source, config)
    part = Cohort(name=config.format, skipped=source.skipped)
    unread = len({item.record for item in source.skipped})
    part.records = source.count + source.too_masked + unread
    part.annotation = map_source_notes(source, config)
    part.identifiers = identifiers
    part.allowed = config.max_skipped * part.records
    studies = _usable(source, config)
    if config.visits is not None:
        studies = prepare_visits(studies, config.visits, part.skipped, part.visits)
        part.skipped += patients_without_visits(source.studies, studies)
        studies = number_visits(studies, config.visits, part.visits)
    else:  # a table may number visits that nobody asked for
        studies = [replace(study, visit=None) if study.visit is not None else study for study in studies]
    placed = studies
    studies, moved = split_by_group(_with_known_split(studies, source), source.has_split, config.split)
    part.notes, moved_notes = split_by_group(source.notes, source.has_split, config.split)
    part.questions, moved_questions = split_by_group(source.questions, source.has_split, config.split)
    part.summaries, moved_summaries = split_by_group(source.summaries, source.has_split, config.split)
    part.moved = moved + moved_notes
    part.texts = TextCounts(too_masked=source.too_masked, groups_moved=moved_questions + moved_summaries)
    studies = _label(studies, source, config)
    # Labels may have left studies out: then visits are counted and numbered again.
    if config.visits is not None and len(studies) < len(placed):
        part.skipped += patients_without_visits(placed, studies)
        studies = number_visits(studies, config.visits, part.visits)
    part.scanners = {number: config.scanner}
    if number:
        studies = [replace(study, extra={**study.extra, "source": number}) for study in studies]
    part.studies = studies
    return part


def _usable(source: SourceRecords, config: CohortConfig) -> list[Study]:
    """Return studies with a patient, an unused id, an image that exists and a report that says something."""
    kept: list[Study] = []
    counts: Counter[str] = Counter()
    for study in source.studies:
        counts[study.study_id] += 1
        if counts[study.study_id] > 1:
            record = f"{study.study_id} ({counts[study.study_id]})"
            detail = "the same study id appeared before; the first one is kept"
            source.skip(record, "duplicated study", detail)
            continue
        present, missing = _present(study, config)
        report = clean_report(study.report, rules=config.text_rules)
        fault = _fault(study, present, missing, report)
        if fault is not None:
            row = f"{study.place}: " if config.visits is not None and study.place else ""
            source.skip(study.study_id, fault[0], f"{row}{fault[1]}")
            continue
        for path in missing:  # the study stays with its other images
            detail = f"{path}: no such file; the study keeps its other images"
            source.skip(study.study_id, "missing image", detail)
        kept.append(replace(study, report=report, images=tuple(present)))
    return kept


def _present(study: Study, config: CohortConfig) -> tuple[list[Any], list[Any]]:
    wanted = study.images[:1] if config.study_images == "first" else study.images
    is_there = os.path.isfile if config.visits is None or config.visits.slices is None else os.path.exists
    present = [path for path in wanted if is_there(path)]
    return present, [path for path in wanted if path not in present]


def _fault(
    study: Study, present: Sequence[Any], missing: Sequence[Any], report: str
) -> tuple[str, str] | None:
    """Return reason and detail of the first fault of a study, None where it is usable."""
    if not study.patient_id:
        return "missing patient id", "no patient id, so it could land in two splits"
    if not present:
        return "missing image", f"{missing[0]}: no such file" if missing else "the source names no image"
    if not report:
        return "empty report", f"nothing is left of the report {study.report[:40]!r} after cleaning"
    return None


def _with_known_split(studies: list[Study], source: SourceRecords) -> list[Study]:
    """Return the studies with our word for their split, "" where they name none; those with an unknown one
    are skipped."""
    if not source.has_split:
        return studies
    kept = []
    for study in studies:
        name = split_name(study.split) if study.split.strip() else ""
        if name is None:
            detail = (
                f"split {study.split!r} is none of {', '.join(SPLITS)}; 'columns: {{split: null}}' ignores it"
            )
            source.skip(study.study_id, "unknown split", detail)
        else:
            kept.append(replace(study, split=name))
    return kept


def _label(studies: list[Study], source: SourceRecords, config: CohortConfig) -> list[Study]:
    """Return the studies with their 14 codes, from where `config.labels` says."""
    labels = config.labels
    if labels == "auto":
        labels = "source" if source.has_labels else "rules"
    if labels == "source":
        if not source.has_labels:
            raise DataError(
                f"{config.root}: 'labels: source', but the source brings no labels; use rules or chexbert."
            )
        for study in studies:
            if study.codes is None:
                detail = "the source's labels lack this study, or are not 14 known values"
                source.skip(study.study_id, "missing labels", detail)
        return [study for study in studies if study.codes is not None]
    if labels == "chexbert":
        assert config.chexbert_folder is not None
        codes = labelling.chexbert_labels([study.report for study in studies], config.chexbert_folder)
        return [replace(study, codes=tuple(row)) for study, row in zip(studies, codes, strict=True)]
    return [replace(study, codes=tuple(labelling.label_report(study.report))) for study in studies]
