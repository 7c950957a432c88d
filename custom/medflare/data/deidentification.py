# SPDX-License-Identifier: Apache-2.0
"""Identifiers in the texts of a cohort: counted with their places, a reason to refuse it, or replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from medflare.core.errors import ConfigError, DataError
from medflare.data.records import Entity, Note, RecordLists, Study, Summary
from medflare.data.settings.cohort import CohortConfig
from medflare.identifiers.kinds import Detector, Identifier
from medflare.identifiers.presidio import PresidioDetector
from medflare.identifiers.rules import RuleDetector
from medflare.identifiers.surrogates import Replaced, Surrogates

SHOWN = 5
"""Places that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifierPlace:
    """A place of an identifier: never its text, so that places can be logged.

    Attributes:
        record: id of the study, note or summary; field: `report`, `text`, `source` or `target`.
    """

    record: str
    field: str
    identifier: Identifier


def detector_of(config: CohortConfig) -> Detector:
    """Return the detector of a cohort's settings.

    Raises:
        ConfigError: it names a model, and Presidio or the model is not installed.
    """
    return RuleDetector() if config.identifier_model is None else PresidioDetector(config.identifier_model)


def places(records: RecordLists, detector: Detector) -> Iterator[IdentifierPlace]:
    """Yield every identifier in reports, notes and summaries; questions are nobody's."""
    for record, field, text, _ in _texts(records):
        for item in detector.find(text):
            yield IdentifierPlace(record=record, field=field, identifier=item)


def treat_identifiers(source: RecordLists, config: CohortConfig) -> Counter[str]:
    """Obey `deidentify`: nothing, refuse, or put surrogates into the records of `source`.

    Returns:
        Kind -> how many were replaced; empty unless `deidentify: replace`.

    Raises:
        DataError: `refuse`, and there are identifiers; counts them and names places, never the text.
        ConfigError: the key cannot be used, or the detector's model is missing.
    """
    if config.deidentify == "allow":
        return Counter()
    detector = detector_of(config)
    if config.deidentify == "refuse":
        found = list(places(source, detector))
        if found:
            raise DataError(_refusal(found, config))
        return Counter()
    return _replace(source, detector, _surrogates(config))


def _texts(records: RecordLists) -> Iterator[tuple[str, str, str, str]]:
    """Yield (record, field, text, patient) of every text that may name a person."""
    for study in records.studies:
        yield study.study_id, "report", study.report, study.patient_id
    for note in records.notes:
        yield note.note_id, "text", note.text, note.patient_id or note.note_id
    for summary in records.summaries:
        yield summary.summary_id, "source", summary.source, summary.patient_id
        yield summary.summary_id, "target", summary.target, summary.patient_id


def _refusal(found: list[IdentifierPlace], config: CohortConfig) -> str:
    kinds = Counter(place.identifier.kind for place in found)
    counted = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in kinds.most_common())
    first = "; ".join(
        f"{place.record}, {place.field} {place.identifier.start}:{place.identifier.end} "
        f"({place.identifier.kind.replace('_', ' ')})"
        for place in found[:SHOWN]
    )
    return (
        f"{config.root}: {len(found)} identifiers stand in its texts ({counted}), and site.yaml says "
        f"'deidentify: refuse'. The first: {first}. Remove them, or set 'deidentify: replace'. "
        "`medflare cohort inspect --identifiers` lists all places."
    )


def _surrogates(config: CohortConfig) -> Surrogates:
    assert config.deidentify_key is not None
    try:
        return Surrogates(config.deidentify_key.read_bytes())
    except OSError as error:
        raise ConfigError(f"deidentify_key: {config.deidentify_key}: {error.strerror or error}.") from None
    except ValueError as error:
        raise ConfigError(f"deidentify_key: {config.deidentify_key}: {error}.") from None


def _replace(source: RecordLists, detector: Detector, surrogates: Surrogates) -> Counter[str]:
    counts: Counter[str] = Counter()

    def change(text: str, patient: str) -> Replaced:
        found = detector.find(text)
        counts.update(item.kind for item in found)
        return surrogates.replace(text, found, patient)

    source.studies = [_study(study, change) for study in source.studies]
    source.notes = [_note(note, change) for note in source.notes]
    source.summaries = [_summary(summary, change) for summary in source.summaries]
    return counts


TextChange = Callable[[str, str], Replaced]


def _study(study: Study, change: TextChange) -> Study:
    return replace(study, report=change(study.report, study.patient_id).text)


def _summary(summary: Summary, change: TextChange) -> Summary:
    source, target = (change(text, summary.patient_id).text for text in (summary.source, summary.target))
    return replace(summary, source=source, target=target)


def _note(note: Note, change: TextChange) -> Note:
    """Return a note with surrogates; an entity on a part of an identifier marks the whole surrogate."""
    changed = change(note.text, note.patient_id or note.note_id)
    entities = tuple(_entity(entity, changed) for entity in note.entities)
    return replace(note, text=changed.text, entities=entities)


def _entity(entity: Entity, changed: Replaced) -> Entity:
    spans = tuple((changed.offset(start), changed.offset(end, end=True)) for start, end in entity.spans)
    return replace(entity, spans=spans)
