# SPDX-License-Identifier: Apache-2.0
"""The ledger `egress.jsonl`: one line for every message that left a site in one job.

A line is written before its message leaves. A line names what was sent and never a value of it. Each line
holds the digest of the line before it, so that a changed or removed line is noticed; whoever may write the
file can still rewrite all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from medflare.egress.failures import Failure
from medflare.wire.folders import make_folder, sync

FILE = "egress.jsonl"
Event = Literal["sent", "resent", "blocked", "failure"]
"""A message that left, the same once more after a crash, one that was held back, and a failure whose code and
text left."""


@dataclass(slots=True)
class Ledger:
    """The ledger of one job at one site.

    Attributes:
        job: FLARE's id of the job; `job_name` is what its meta.json calls it.
        tasks: tasks that this site received in this job so far, an earlier process's included.
        volumes: round as this site counts them -> bytes that left in it, tensors and facts; continued from
            the file after a restart.
    """

    path: Path
    site: str
    job: str
    job_name: str = ""
    tasks: set[str] = field(default_factory=set)
    volumes: Counter[int] = field(default_factory=Counter)
    _last: str | None = None
    _written: set[str] = field(default_factory=set)

    def tasks_so_far(self) -> set[str]:
        """Return the tasks that this site received in this job, also before a restart."""
        self._continue()
        return self.tasks

    def note_task(self, task: str) -> None:
        """Remember that a task came; its line follows when something leaves or is held back."""
        self._continue()
        self.tasks.add(task)

    def bytes_sent(self, site_round: int) -> int:
        """Return the bytes that have left in a round as this site counts them."""
        self._continue()
        return self.volumes[site_round]

    def sent(self, task: str, round_number: int, line: Mapping[str, Any], site_round: int = 0) -> None:
        """Record a message that is about to leave; `line` has `bytes` and `facts_bytes` at least.

        Args:
            round_number: as the server calls the round.
            site_round: rounds that this site has opened in the job, by which bytes are counted.
        """
        self._continue()
        self.volumes[site_round] += int(line["bytes"]) + int(line["facts_bytes"])
        counted = {"site_round": site_round, "round_bytes": self.volumes[site_round]}
        self._write("sent", task, round_number, {**line, **counted})

    def resent(self, task: str, round_number: int, line: Mapping[str, Any]) -> None:
        """Record that the answer to a request that was answered before is about to leave again."""
        self._continue()
        self._write("resent", task, round_number, line)

    def blocked(
        self, task: str, round_number: int, rules: Iterable[str], reason: str, file: Path | None
    ) -> None:
        """Record a message that stays: which rules hold it back, why, and the file of the policy's rules."""
        line = {"rules": list(rules), "reason": reason, "file": str(file) if file else None}
        self._write("blocked", task, round_number, line)

    def failed(self, task: str, round_number: int, failure: Failure) -> None:
        """Record a failure as it is reported to the server."""
        self._write("failure", task, round_number, failure.to_json())

    def reference(self, key: str, digest: str, content: Any) -> dict[str, Any]:
        """Return `{key: digest}`, with `content` the first time that this digest is written to the file."""
        self._continue()
        if digest in self._written:
            return {key: digest}
        self._written.add(digest)
        return {key: digest, f"{key}_content": content}

    def _write(self, event: Event, task: str, round_number: int, line: Mapping[str, Any]) -> None:
        self._continue()
        head = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "event": event,
            "site": self.site,
            "to": "server",
            "job": self.job,
            "job_name": self.job_name,
            "round": round_number,
            "task": task,
        }
        text = json.dumps({**head, **line, "previous": self._last})
        make_folder(self.path.parent)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())  # on disk before the message leaves
        if not self._last:
            sync(self.path.parent)  # the file is new
        self._last = line_digest(text)

    def _continue(self) -> None:
        """Read what an earlier process of the same job has written, once."""
        if self._last is not None:
            return
        self._last = ""
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")  # the next line must not be joined to half a one
        for line in text.splitlines():
            self._last = line_digest(line)
            self._read(line)

    def _read(self, text: str) -> None:
        """Add a line of an earlier process to the tasks, volumes and digests."""
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            return  # half a line after a power cut; `medflare egress report` names it
        self.tasks.add(str(line.get("task")))
        if line.get("event") == "sent":
            self.volumes[int(line.get("site_round", line["round"]))] = int(line["round_bytes"])
            self._written |= {line[key] for key in ("declaration", "policy") if f"{key}_content" in line}


def line_digest(text: str) -> str:
    """Return the sha256 of a line without its line break."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def declaration_digest(declaration: Mapping[str, Any]) -> str:
    """Return the sha256 by which lines refer to their declaration."""
    return hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()
