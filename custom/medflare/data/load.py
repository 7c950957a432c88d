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
from medflare.data.grouped_split import limit_groups, pool_groups, split_by_group
from medflare.data.notes.inventory_mapping import map_source_notes
from medflare.data.pool import limit_notes, limit_studies, patient_of_note, pool_notes, pool_studies
from medflare.data.readers import read_source
from medflare.data.readers.common import SourceRecords
from medflare.data.records import SPLITS, Note, Question, Skipped, Study, Summary
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.data.splits import assign_splits, one_split_per_patient, split_name
from medflare.data.text import clean_report
from medflare.data.text_facts import TextCounts
from medflare.data.visits.longitudinal import number_visits, patients_without_visits, prepare_visits
from medflare.labelling import labels as labelling


def load_cohort(site: SiteConfig, name: str = "") -> Cohort:
    """The usable records of a site; several cohorts in site.yaml are pooled.

    Raises:
        DataError: a source cannot be read at all, nothing usable is left, or more records than
            `max_skipped` allows are unusable.
    """
    cohort = Cohort(name=name or site.name)
    written: list[tuple[str, list[Note]]] = []
    asked: list[tuple[str, list[Question]]] = []
    summed: list[tuple[str, list[Summary]]] = []
    for index, config in enumerate(site.cohort):
        part = _read_one(config, index if len(site.cohort) > 1 else None)
        check_skipped(part, str(config.root))
        if config.limit is not None:
            part.studies = limit_studies(part.studies, config.limit, config.split.seed)
            part.notes = limit_notes(part.notes, config.limit, config.split.seed)
            part.questions = limit_groups(part.questions, config.limit, config.split.seed)
            part.summaries = limit_groups(part.summaries, config.limit, config.split.seed)
        cohort.studies += part.studies
        cohort.notes += part.notes
        cohort.questions += part.questions
        cohort.summaries += part.summaries
        written.append((str(config.root), part.notes))
        asked.append((str(config.root), part.questions))
        summed.append((str(config.root), part.summaries))
        cohort.skipped += part.skipped
        cohort.records += part.records
        cohort.moved += part.moved
        cohort.allowed += part.allowed
        cohort.scanners |= part.scanners
        cohort.annotation.add(part.annotation)
        cohort.visits.add(part.visits)
        cohort.texts.add(part.texts)
    if len(site.cohort) > 1:
        cohort.studies, moved = pool_studies(cohort.studies)
        cohort.notes, moved_too = pool_notes(written)
        cohort.moved += moved + moved_too
        cohort.questions, moved = pool_groups(asked)
        cohort.summaries, moved_too = pool_groups(summed)
        cohort.texts.groups_moved += moved + moved_too
    if not (cohort.studies or cohort.notes or cohort.questions or cohort.summaries):
        where = ", ".join(str(config.root) for config in site.cohort)
        few = cohort.visits.patients_with_too_few
        why = f" {few} patient(s) have fewer visits than 'visits: fewest' asks for." if few else ""
        raise DataError(f"{where}: holds no usable record{counted_reasons(cohort.skipped)}.{why}")
    return cohort


def _read_one(config: CohortConfig, number: int | None) -> Cohort:
    """One source, checked record by record; `number` marks its patients when several are pooled."""
    source = read_source(config)
    part = Cohort(name=config.format, skipped=source.skipped)
    unread = len({item.record for item in source.skipped})
    texts = len(source.notes) + len(source.questions) + len(source.summaries)
    part.records = len(source.studies) + texts + source.too_masked + unread
    part.annotation = map_source_notes(source, config)
    part.allowed = config.max_skipped * part.records
    studies = _usable(source, config, part.skipped)
    if config.visits is not None:
        studies = prepare_visits(studies, config.visits, part.skipped, part.visits)
        part.skipped += patients_without_visits(source.studies, studies)
        studies = number_visits(studies, config.visits, part.visits)
    else:  # a table may number visits that nobody asked for
        studies = [replace(study, visit=None) if study.visit is not None else study for study in studies]
    placed = studies
    studies, part.moved = _split(studies, source.has_split, config, part.skipped)
    part.notes, moved = _split_notes(source, config)
    part.moved += moved
    _split_texts(part, source, config)
    studies = _label(studies, source.has_labels, config, part.skipped)
    if config.visits is not None and len(studies) < len(placed):
        part.skipped += patients_without_visits(placed, studies)
        studies = number_visits(studies, config.visits, part.visits)
    key = f"{number}" if number is not None else ""
    part.scanners = {key: config.scanner}
    if number is not None:  # the same folder read twice shares its patients, two hospitals do not
        home = str(config.root)
        studies = [replace(s, extra={**s.extra, "source": key, "home": home}) for s in studies]
    part.studies = studies
    return part


def _usable(source: SourceRecords, config: CohortConfig, skipped: list[Skipped]) -> list[Study]:
    """Studies with a patient, an unused id, an image that exists and a report that says something."""
    kept: list[Study] = []
    seen: Counter[str] = Counter()
    for study in source.studies:
        seen[study.study_id] += 1
        if seen[study.study_id] > 1:
            record = f"{study.study_id} ({seen[study.study_id]})"
            detail = "the same study id appeared before; the first one is kept"
            skipped.append(Skipped(record=record, reason="duplicated study", detail=detail))
            continue
        present, missing = _present(study, config)
        report = clean_report(study.report, rules=config.text_rules)
        fault = _fault(study, present, missing, report)
        if fault is not None:
            row = f"{study.place}: " if config.visits is not None and study.place else ""
            skipped.append(Skipped(record=study.study_id, reason=fault[0], detail=f"{row}{fault[1]}"))
            continue
        for path in missing:  # the study stays with its other images
            detail = f"{path}: no such file; the study keeps its other images"
            skipped.append(Skipped(record=study.study_id, reason="missing image", detail=detail))
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
    """Reason and detail of the first fault of a study, None where it is usable."""
    if not study.patient_id:
        return "missing patient id", "no patient id, so it could land in two splits"
    if not present:
        return "missing image", f"{missing[0]}: no such file" if missing else "the source names no image"
    if not report:
        return "empty report", f"nothing is left of the report {study.report[:40]!r} after cleaning"
    return None


def _split(
    studies: list[Study], has_split: bool, config: CohortConfig, skipped: list[Skipped]
) -> tuple[list[Study], int]:
    """Every study with its patient's split, and how many patients the source had put in two."""
    if not has_split:
        given = assign_splits((study.patient_id for study in studies), config.split)
        return [replace(study, split=given[study.patient_id]) for study in studies], 0
    kept = []
    for study in studies:
        name = split_name(study.split)
        if name is None:
            detail = (
                f"split {study.split!r} is none of {', '.join(SPLITS)}; 'columns: {{split: null}}' ignores it"
            )
            skipped.append(Skipped(record=study.study_id, reason="unknown split", detail=detail))
        else:
            kept.append(replace(study, split=name))
    given, moved = one_split_per_patient((study.patient_id, study.split) for study in kept)
    return [replace(study, split=given[study.patient_id]) for study in kept], moved


def _split_notes(source: SourceRecords, config: CohortConfig) -> tuple[list[Note], int]:
    owners = [patient_of_note(note) for note in source.notes]
    given, moved = assign_splits(owners, config.split), 0
    if source.has_split:
        given, moved = one_split_per_patient(zip(owners, (note.split for note in source.notes), strict=True))
    return [replace(note, split=given[o]) for note, o in zip(source.notes, owners, strict=True)], moved


def _split_texts(part: Cohort, source: SourceRecords, config: CohortConfig) -> None:
    """The source's questions and summaries with their splits."""
    part.questions, moved = split_by_group(source.questions, source.has_split, config.split)
    part.summaries, moved_too = split_by_group(source.summaries, source.has_split, config.split)
    part.texts = TextCounts(too_masked=source.too_masked, groups_moved=moved + moved_too)


def _label(
    studies: list[Study], has_labels: bool, config: CohortConfig, skipped: list[Skipped]
) -> list[Study]:
    """Studies with their 14 codes, from where `config.labels` says."""
    kind = config.labels
    if kind == "auto":
        kind = "source" if has_labels else "rules"
    if kind == "source":
        if not has_labels:
            raise DataError(
                f"{config.root}: 'labels: source', but the source brings no labels; use rules or chexbert."
            )
        for study in studies:
            if study.codes is None:
                detail = "the source's labels lack this study, or are not 14 known values"
                skipped.append(Skipped(record=study.study_id, reason="missing labels", detail=detail))
        return [study for study in studies if study.codes is not None]
    if kind == "chexbert":
        assert config.chexbert_folder is not None
        codes = labelling.chexbert_labels([study.report for study in studies], config.chexbert_folder)
        return [replace(study, codes=tuple(found)) for study, found in zip(studies, codes, strict=True)]
    return [replace(study, codes=tuple(labelling.label_report(study.report))) for study in studies]
