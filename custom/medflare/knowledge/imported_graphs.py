# SPDX-License-Identifier: Apache-2.0
"""Knowledge graphs that other programs made: EDC, GreenKGC, AutoAlign, or columns.

EDC (Zhang and Soh 2024) writes for each text a Python list of triples. GreenKGC (Wang et al. 2023) scores
numbered triples beside `entities.dict` and `relations.dict` and keeps metrics alone: save its scores as a
fourth column. AutoAlign (Zhang et al. 2023) has pairs of entities as N-Triples of `owl:sameAs`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

from medflare.core.errors import DataError
from medflare.knowledge.triples import Triple, canonical

ScoredTriple = tuple[Triple, float]
_BETWEEN_LISTS = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|\]\s*\[""")
_SAME = re.compile(r"\s*<([^>]*)>\s*<([^>]*[#/]sameAs)>\s*<([^>]*)>\s*\.\s*")


def _text(file: Path, what: str) -> str:
    """Return the text of a file; DataError that names a file which cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{file}: cannot be read as {what} ({type(error).__name__}). Check `knowledge` in site.yaml; the "
            "file must be UTF-8."
        ) from None


def _lines(file: Path, what: str) -> Iterator[tuple[int, str]]:
    """Yield (number, line) without empty lines and comments."""
    for number, line in enumerate(_text(file, what).splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line


def _score(scores: list[str]) -> float:
    """Return the one score there may be, 1 without; ValueError for more of them, or one outside [0, 1]."""
    (score,) = map(float, scores or ["1"])
    if not 0 <= score <= 1:
        raise ValueError
    return score


def read_columns(file: Path) -> Iterator[ScoredTriple]:
    """Yield triples from tab-separated lines of head, relation, tail and, where there is a score, confidence.

    A triple with confidence 0 is left out. Raises DataError that names file and line.
    """
    for number, line in _lines(file, "a list of triples"):
        try:
            head, relation, tail, *scores = line.split("\t")
            score = _score(scores)
        except ValueError:
            raise DataError(
                f"{file}, line {number}: '{line[:60]}'; expected head, relation, tail and at most one "
                "confidence in (0, 1], with tabs between them."
            ) from None
        if score:
            yield Triple(head, relation, tail), score


def read_edc(file: Path) -> Iterator[ScoredTriple]:
    """Yield EDC's canonicalised triples: a list of [head, relation, tail] for each text, one after the other.

    Underscores are spaces. A triple without a known relation, which EDC writes as None, is left out.
    """
    text = _BETWEEN_LISTS.sub(lambda lists: lists[1] or "],[", _text(file, "EDC's output"))
    try:
        lists = ast.literal_eval(f"[{text.strip()}]")
        rows = [row for triples in lists for row in triples if row is not None]
        parts = [tuple(str(part).replace("_", " ") for part in row) for row in rows]
        triples = [Triple(head, relation, tail) for head, relation, tail in parts]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise DataError(
            f"{file}: is not EDC's output ({type(error).__name__}); expected for each text a list such as "
            "[['head', 'relation', 'tail'], ...], as in canon_kg.txt or edc_output.txt."
        ) from None
    return ((triple, 1.0) for triple in triples)


def read_numbered(file: Path) -> Iterator[ScoredTriple]:
    """Yield triples from lines of three numbers and a score, with names in `entities.dict`, `relations.dict`.

    As GreenKGC counts: relation n + r of n relations is relation r with head and tail exchanged.
    """
    entities, relations = (_numbers(file.with_name(f"{table}.dict")) for table in ("entities", "relations"))
    for number, line in _lines(file, "a list of numbered triples"):
        try:
            head, relation, tail, *scores = line.split()
            turned, table = divmod(int(relation), len(relations))
            names = entities[int(head)], relations[table], entities[int(tail)]
            score = _score(scores)
            if turned not in (0, 1):
                raise KeyError
        except (ValueError, KeyError, ZeroDivisionError):
            raise DataError(
                f"{file}, line {number}: '{line[:60]}'; expected numbers of head, relation and tail that "
                "entities.dict and relations.dict have, and at most one score in (0, 1]."
            ) from None
        if score:
            yield Triple(*(names[::-1] if turned else names)), score


def _numbers(file: Path) -> dict[int, str]:
    names = dict[int, str]()
    for number, line in _lines(file, "a list of numbers and names"):
        try:
            key, name = line.split("\t")
            if names.setdefault(int(key), name) != name:
                raise ValueError
        except ValueError:
            raise DataError(
                f"{file}, line {number}: '{line[:60]}'; expected a number and a name with a tab between "
                "them, and no number of two names."
            ) from None
    return names


def read_same(file: Path) -> Iterator[tuple[str, str]]:
    """Yield pairs of names for one thing: N-Triples of `owl:sameAs` as AutoAlign has them, or two columns.

    Of an address the last part counts, underscores are spaces.
    """
    for number, line in _lines(file, "pairs of names"):
        addresses = _SAME.fullmatch(line)
        pair = [_local(addresses[1]), _local(addresses[3])] if addresses else line.split("\t")
        if len(pair) != 2 or not all(map(canonical, pair)):
            raise DataError(
                f"{file}, line {number}: '{line[:60]}'; expected two names with a tab between them, or "
                "<address> <http://www.w3.org/2002/07/owl#sameAs> <address> ."
            )
        yield pair[0], pair[1]


def _local(address: str) -> str:
    return unquote(re.split(r"[/#]", address.rstrip("/"))[-1]).replace("_", " ")


READERS: dict[str, Callable[[Path], Iterator[ScoredTriple]]] = {
    "columns": read_columns,
    "edc": read_edc,
    "numbered": read_numbered,
}
