# SPDX-License-Identifier: Apache-2.0
"""Notes of an OMOP common data model: NOTE, PERSON, and NOTE_NLP with CONCEPT for entities.

Tables are CSV or Parquet files of root named after them (note.csv, NOTE.parquet, ...), or tables of one
.duckdb file. `select` filters by columns of NOTE and PERSON, as `{note_class_concept_id: 706391,
gender_concept_id: 8532}`. Where PERSON is there, notes of nobody in it are counted and left out: a person who
was taken out of the database trains nothing. A term of NOTE_NLP is an entity of its concept's domain
(Condition, Drug, ...; label map `omop`); its `offset` must be where `lexical_variant` stands.
`term_exists: N` has no words that could be marked and is counted. Without NOTE_NLP texts alone are read
(`tasks: []`). https://ohdsi.github.io/CommonDataModel/
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from medflare.core.errors import DataError
from medflare.data.readers.annotated import check_surface, check_text, checked_note
from medflare.data.readers.common import SourceRecords, parse_number
from medflare.data.readers.tables import LINE_KEY, TableRow, listing, read_table, select_rows
from medflare.data.records import Entity, Note, RecordError
from medflare.data.settings.cohort import CohortConfig

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")


def read(config: CohortConfig) -> SourceRecords:
    """Read the notes below `config.root`, or in the DuckDB file that it is.

    Raises:
        DataError: there is no NOTE table, or entities are asked for and their tables are missing.
    """
    source, left_out = SourceRecords(), Counter[str]()
    notes = _table(config.root, "note", source, ("note_id", "person_id", "note_text"))
    if notes is None:
        where = listing(config.root) if config.root.is_dir() else "no NOTE table"
        raise DataError(
            f"{config.root}: expected a NOTE table (note.csv, note.parquet, *.duckdb); found {where}."
        )
    terms = _terms(config.root, source, left_out) if config.tasks else {}
    persons = _persons(config.root, source)
    for number, row in enumerate(_selected(notes, persons, config), 1):
        record = _whole(row.get("note_id")) or f"note {number}"
        where = f"NOTE {record}"
        with source.skipping(record):
            if record in source.places:
                raise RecordError("duplicated note", f"{where}: stands twice; the first one is kept")
            text, person = str(row.get("note_text") or ""), _whole(row.get("person_id"))
            if persons is not None and person not in persons:
                left_out["note of nobody in PERSON"] += 1
                continue
            check_text(text, where)
            note = Note(note_id=record, text=text, patient_id=person or record, split="", tasks=())
            if config.tasks:
                entities = [_entity(term, text, f"NOTE_NLP {record}") for term in terms.get(record, [])]
                note = checked_note(record, text, where, patient_id=note.patient_id, entities=entities)
            source.places[record] = where
            source.notes.append(note)
    source.left_out = dict(+left_out)
    return source


def _persons(root: Path, source: SourceRecords) -> dict[str, TableRow] | None:
    """Return the rows of PERSON by their id, None where there is no such table."""
    rows = _table(root, "person", source, ("person_id",))
    return None if rows is None else {_whole(row["person_id"]): row for row in rows}


def _selected(
    notes: list[TableRow], persons: Mapping[str, TableRow] | None, config: CohortConfig
) -> Iterator[TableRow]:
    """Yield the notes that `select` keeps, by their columns and their person's.

    Raises:
        DataError: neither table has a column that `select` names.
    """
    wanted = {name.lower(): values for name, values in config.select.items()}
    people = persons or {}
    columns = dict.fromkeys(column for row in [*notes[:1], *list(people.values())[:1]] for column in row)
    joined = [{**people.get(_whole(row.get("person_id")), {}), **row} for row in notes]
    for row in joined:
        row.update({name: _whole(row.get(name)) for name in wanted if name in columns})
    yield from select_rows(config.root, list(columns), joined, wanted)


def _terms(
    root: Path, source: SourceRecords, left_out: Counter[str]
) -> Mapping[str, list[tuple[str, TableRow]]]:
    """Return note -> (domain, row of NOTE_NLP) of each term whose concept is known."""
    rows = _table(root, "note_nlp", source, ("note_nlp_id", "note_id", "lexical_variant", "offset"))
    concepts = _table(root, "concept", source, ("concept_id", "domain_id"))
    if rows is None or concepts is None:
        missing = " and ".join(["NOTE_NLP"] * (rows is None) + ["CONCEPT"] * (concepts is None))
        raise DataError(
            f"{root}: entities are read from NOTE_NLP and CONCEPT (concept_id, domain_id); {missing} is "
            "missing. Add it, or set 'tasks: []' to read texts alone."
        )
    domains = {_whole(row["concept_id"]): str(row["domain_id"]) for row in concepts}
    terms = defaultdict[str, list[tuple[str, TableRow]]](list)
    for row in rows:
        domain = domains.get(_whole(row.get("note_nlp_concept_id")), "")
        left_out["negated term"] += str(row.get("term_exists") or "").upper() == "N"
        if domain:
            terms[_whole(row["note_id"])].append((domain, row))
        else:
            left_out["term without a known concept"] += 1
    return terms


def _entity(term: tuple[str, TableRow], text: str, where: str) -> Entity:
    domain, row = term
    name, written = f"T{_whole(row['note_nlp_id'])}", str(row.get("lexical_variant") or "")
    start = parse_number(row.get("offset"))
    if start is None or not start.is_integer() or not written:
        raise RecordError("malformed entity", f"{where}: {name} has no whole number as offset, or no words")
    spans = ((int(start), int(start) + len(written)),)
    check_surface(name, spans, text, written, where)
    return Entity(entity_id=name, label=domain, spans=spans)


def _table(root: Path, name: str, source: SourceRecords, columns: tuple[str, ...]) -> list[TableRow] | None:
    """Return the rows of a table with lower-case columns, None where root has no such table.

    Raises:
        DataError: a column is missing, or the file cannot be read.
    """
    if not root.exists():
        raise DataError(f"{root}: no such file or folder. Check 'root' in site.yaml.")
    databases = [root] if root.is_file() else sorted(root.glob("*.duckdb"))
    files = [] if root.is_file() else [path for path in sorted(root.iterdir()) if _is_table(path, name)]
    if files:
        rows = _rows_of_file(files[0], source)
    elif databases:
        found = _rows_of_database(databases[0], name)
        if found is None:
            return None
        rows = found
    else:
        return None
    place = files[0] if files else f"{databases[0]}, table {name.upper()}"
    lowered = [{key.lower(): row[key] for key in row if key != LINE_KEY} for row in rows]
    if lowered and (missing := [column for column in columns if column not in lowered[0]]):
        raise DataError(f"{place}: has no column {', '.join(missing)}; it has {', '.join(lowered[0])}.")
    return lowered


def _is_table(path: Path, name: str) -> bool:
    lowered = path.name.lower()
    return path.is_file() and any(lowered == f"{name}{suffix}" for suffix in SUFFIXES)


def _rows_of_file(path: Path, source: SourceRecords) -> list[TableRow]:
    if path.suffix.lower() != ".parquet":
        _, rows, unreadable = read_table(path)
        source.skipped += unreadable
        return rows
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'medflare[omop]'.") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise DataError(f"{path}: cannot be read: {error}. Copy the file again.") from None
    return rows


def _rows_of_database(path: Path, name: str) -> list[TableRow] | None:
    try:
        import duckdb
    except ImportError:
        raise DataError(f"{path}: DuckDB files need duckdb: pip install 'medflare[omop]'.") from None
    safe: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    try:
        with duckdb.connect(str(path), read_only=True, config=safe) as database:
            names = {str(row[0]).lower(): str(row[0]) for row in database.execute("SHOW TABLES").fetchall()}
            if name not in names:
                return None
            answer = database.execute(f'SELECT * FROM "{names[name]}"')
            columns = [str(column[0]) for column in answer.description]
            return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]
    except duckdb.Error as error:
        raise DataError(f"{path}: is no DuckDB file that can be read: {str(error)[:200]}") from None


def _whole(value: object) -> str:
    """Return an identifier as text; 12.0, as tables with empty cells have it, is 12."""
    return "" if value is None or value != value else str(value).strip().removesuffix(".0")
