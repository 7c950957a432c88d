# SPDX-License-Identifier: Apache-2.0
"""Reads ledgers: what left a site, what was held back, and whether each file is complete and consistent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medflare.core.errors import DataError
from medflare.core.tensor_names import SUM_PREFIX
from medflare.core.tensors import SharedSpec
from medflare.egress.ledger import FILE, Event, declaration_digest, line_digest
from medflare.wire import compression
from medflare.wire.spec_codec import spec_from_json


class LedgerLine(BaseModel):
    """One line of a ledger; keys of later versions are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    time: str
    event: Event
    site: str
    to: str
    job: str
    job_name: str
    round: int = Field(description="0-based as in run.json; -1 before the first round")
    task: str
    previous: str = Field(description="sha256 of the line before")
    tensors: int = 0
    dtypes: list[str] = []
    bytes: int = 0
    sha256: str = ""
    compression: str | None = None
    protections: list[str] = []
    facts: list[str] = []
    facts_bytes: int = 0
    site_round: int | None = Field(
        default=None, description="rounds the site had opened; None in ledgers of before they were counted"
    )
    round_bytes: int = 0
    sealed: dict[str, Any] = {}
    sketch: dict[str, Any] = {}
    exact: dict[str, Any] = {}
    privacy: dict[str, Any] = Field(
        default={}, description="of a private update: epsilon of the run and of all jobs, and the budget"
    )
    missing: list[str] = []
    withheld: int = 0
    declaration: str = ""
    declaration_content: dict[str, Any] | None = None
    policy: str = ""
    policy_content: dict[str, Any] | None = None
    rules: list[str] = []
    reason: str = ""
    file: str | None = None
    code: int = 0
    text: str = ""


@dataclass(slots=True)
class LedgerFile:
    """One ledger that was read.

    Attributes:
        declarations, policies: contents by digest.
        problems: what is wrong, each with file and line.
    """

    path: Path
    lines: list[LedgerLine] = field(default_factory=list)
    declarations: dict[str, dict[str, Any]] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def spec(self, line: LedgerLine) -> SharedSpec:
        """Return the declared tensors that a message holds; empty where it holds none."""
        declared = self.declarations.get(line.declaration)
        if declared is None or not line.tensors:
            return {}
        sums = {SUM_PREFIX + name: value for name, value in declared["sums"].items()}
        allowed = {**declared["shared"], **(sums if line.task == "fit" else {})}
        return spec_from_json({n: v for n, v in allowed.items() if n not in set(line.missing)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """Filter of the lines to report; None stands for all. `round` is 0-based."""

    job: str | None = None
    site: str | None = None
    round: int | None = None

    def holds(self, line: LedgerLine) -> bool:
        """Return whether the line is selected; a job by its name or by the beginning of its id."""
        return (
            (self.job is None or line.job_name == self.job or line.job.startswith(self.job))
            and self.site in (None, line.site)
            and self.round in (None, line.round)
        )


def find_ledgers(folders: Sequence[Path]) -> list[Path]:
    """Return every ledger in or below the folders, or the files themselves.

    A ledger that is found in the folder of its run and, as a link, in those of its jobs is one ledger.

    Raises:
        DataError: a folder holds none.
    """
    ledgers: dict[tuple[int, int], Path] = {}
    for folder in folders:
        files = [folder] if folder.is_file() else sorted(folder.rglob(FILE))
        if not files:
            raise DataError(
                f"{folder}: no {FILE} in it or below it. Name a site's kit, a workspace, or a run's folder; "
                "a site that has sent nothing yet has none."
            )
        for file in files:
            facts = file.stat()
            ledgers.setdefault((facts.st_dev, facts.st_ino), file)
    return sorted(ledgers.values())


def read_ledger(path: Path) -> LedgerFile:
    """Return the ledger at `path`; whatever is wrong with it stands in `problems`."""
    ledger, previous, volumes = LedgerFile(path), "", dict[tuple[str, int], int]()
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            line = LedgerLine.model_validate(json.loads(text))
        except (json.JSONDecodeError, ValidationError) as error:
            ledger.problems.append(f"{path}:{number}: is no line of a ledger ({_first(error)})")
        else:
            if line.previous != previous:
                ledger.problems.append(
                    f"{path}:{number}: does not follow the line before it; one was changed, added or removed"
                )
            ledger.problems += [f"{path}:{number}: {problem}" for problem in _check(ledger, line, volumes)]
            ledger.lines.append(line)
        previous = line_digest(text)
    return ledger


def _check(ledger: LedgerFile, line: LedgerLine, volumes: dict[tuple[str, int], int]) -> Iterator[str]:
    """Yield what in a line contradicts the lines before it."""
    if line.event != "sent":
        return
    if line.policy_content is not None:
        ledger.policies[line.policy] = line.policy_content
    if line.declaration_content is not None:
        if declaration_digest(line.declaration_content) != line.declaration:
            yield "the declaration is not the one its digest names"
        ledger.declarations[line.declaration] = line.declaration_content
    if line.tensors and line.declaration not in ledger.declarations:
        yield "refers to a declaration that no line before it holds"
    elif line.bytes != (expected := _expected_bytes(ledger, line)):
        yield f"says {line.bytes} bytes, the tensors it names come to {expected}"
    # A site counts its rounds over all jobs that go on with a run; before that, the server's over one job.
    key = (line.job, line.round) if line.site_round is None else ("", line.site_round)
    volumes[key] = volumes.get(key, 0) + line.bytes + line.facts_bytes
    if line.round_bytes != volumes[key]:
        yield f"says {line.round_bytes} bytes in this round so far, its lines come to {volumes[key]}"
        volumes[key] = line.round_bytes


def _expected_bytes(ledger: LedgerFile, line: LedgerLine) -> int:
    """Return the bytes of the tensors that a message names, compressed or sealed."""
    if line.sealed:
        return compression.message_bytes(spec_from_json(line.sealed), "float32")
    if line.exact:
        return int(line.exact.get("bytes", 0))
    if line.compression is None:
        return 0
    return compression.message_bytes(ledger.spec(line), line.compression)


def totals(lines: Iterable[LedgerLine]) -> list[dict[str, Any]]:
    """Return the sums of what left, for each site, job and task."""
    sums: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for line in lines:
        if line.event != "sent":
            continue
        key = (line.site, line.job, line.job_name, line.task)
        row = sums.setdefault(key, {"messages": 0, "bytes": 0, "facts_bytes": 0, "protections": set()})
        row["messages"] += 1
        row["bytes"] += line.bytes
        row["facts_bytes"] += line.facts_bytes
        row["protections"] |= set(line.protections)
    names = ("site", "job", "job_name", "task")
    return [
        {**dict(zip(names, key, strict=True)), **row, "protections": sorted(row["protections"])}
        for key, row in sums.items()
    ]


def facts_of(ledgers: Sequence[LedgerFile], chosen: LineFilter) -> dict[str, Any]:
    """Return the selected lines with their sums, declarations and policies, in JSON types."""
    selected = [(ledger, line) for ledger in ledgers for line in ledger.lines if chosen.holds(line)]
    declarations = {digest: d for ledger in ledgers for digest, d in ledger.declarations.items()}
    policies = {digest: d for ledger in ledgers for digest, d in ledger.policies.items()}
    hidden = {"declaration_content", "policy_content"}
    rows = [
        {"ledger": str(ledger.path), **line.model_dump(mode="json", exclude=hidden, exclude_defaults=True)}
        for ledger, line in selected
    ]
    return {
        "ledgers": [str(ledger.path) for ledger in ledgers],
        "messages": [row for row in rows if row["event"] == "sent"],
        "blocked": [row for row in rows if row["event"] == "blocked"],
        "failures": [row for row in rows if row["event"] == "failure"],
        "totals": totals(line for _, line in selected),
        "declarations": _used(declarations, {line.declaration for _, line in selected}),
        "policies": _used(policies, {line.policy for _, line in selected}),
        "problems": [problem for ledger in ledgers for problem in ledger.problems],
    }


def _used(contents: Mapping[str, Any], digests: set[str]) -> dict[str, Any]:
    return {digest: content for digest, content in contents.items() if digest in digests}


def _first(error: json.JSONDecodeError | ValidationError) -> str:
    if isinstance(error, ValidationError):
        item = error.errors()[0]
        return f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
    return str(error)
