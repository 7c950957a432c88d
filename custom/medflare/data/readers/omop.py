# SPDX-License-Identifier: Apache-2.0
"""Notes of an OMOP common data model: NOTE, and NOTE_NLP with CONCEPT for entities (CSV, Parquet or DuckDB).

Tables are files of root named after them (note.csv, NOTE.parquet, ...), or tables of one .duckdb file. A
term of NOTE_NLP is an entity of its concept's domain (Condition, Drug, ...; label map `omop`); its `offset`
must be where `lexical_variant` stands. `term_exists: N` has no words that could be marked and is counted.
Without NOTE_NLP texts alone are read (`tasks: []`). https://ohdsi.github.io/CommonDataModel/
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from medflare.core.errors import DataError
from medflare.data.readers.annotated import check_surface, check_text, checked_note
from medflare.data.readers.common import SourceRecords, parse_number
from medflare.data.readers.tables import TableRow, listing, read_table
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
    for number, row in enumerate(notes, 1):
        record = _whole(row.get("note_id")) or f"note {number}"
        where = f"NOTE {record}"
        with source.skipping(record):
            if record in source.places:
                raise RecordError("duplicated note", f"{where}: stands twice; the first one is kept")
            text, person = str(row.get("note_text") or ""), _whole(row.get("person_id"))
            check_text(text, where)
            note = Note(note_id=record, text=text, patient_id=person or record, split="", tasks=())
            if config.tasks:
                entities = [_entity(term, text, f"NOTE_NLP {record}") for term in terms.get(record, [])]
                note = checked_note(record, text, where, patient_id=note.patient_id, entities=entities)
            source.places[record] = where
            source.notes.append(note)
    source.left_out = dict(+left_out)
    return source


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
    lowered = [{key.lower(): value for key, value in row.items()} for row in rows]
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
