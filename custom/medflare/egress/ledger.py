# SPDX-License-Identifier: Apache-2.0
"""egress.jsonl: one line for every message that left a site in one job, written before the message leaves.

A line names what was sent and never a value of it. Each line holds the digest of the line before it, so a
line that was changed or taken out is noticed; whoever may write the file can still write all of it anew.
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

from torch import Tensor

from medflare.core.tensors import SharedSpec
from medflare.egress.failures import Failure
from medflare.wire.digest import byte_count, state_digest
from medflare.wire.spec_codec import spec_to_json

FILE = "egress.jsonl"
Event = Literal["sent", "blocked", "failure"]
"""A message that left, one that was held back, and a failure whose code and text left."""


@dataclass(slots=True)
class Ledger:
    """The ledger of one job at one site.

    Attributes:
        job: FLARE's id of the job; `job_name` is what its meta.json calls it.
        tasks: what this site was asked for in this job so far, an earlier process's included.
        volumes: round -> bytes that left in it, tensors and facts; continued from the file after a restart.
    """

    path: Path
    site: str
    job: str
    job_name: str = ""
    tasks: set[str] = field(default_factory=set)
    volumes: Counter[int] = field(default_factory=Counter)
    _last: str | None = None
    _stated: set[str] = field(default_factory=set)

    def came(self) -> set[str]:
        """The tasks so far."""
        self._continue()
        return self.tasks

    def asked(self, task: str) -> None:
        """A task came; its line follows when something leaves or is held back."""
        self._continue()
        self.tasks.add(task)

    def left(self, round_number: int) -> int:
        """Bytes that have left in this round."""
        self._continue()
        return self.volumes[round_number]

    def sent(self, task: str, round_number: int, line: Mapping[str, Any]) -> None:
        """A message that is about to leave; `line` has `bytes` and `facts_bytes` at least."""
        self._continue()
        self.volumes[round_number] += int(line["bytes"]) + int(line["facts_bytes"])
        self._write("sent", task, round_number, {**line, "round_bytes": self.volumes[round_number]})

    def blocked(
        self, task: str, round_number: int, rules: Iterable[str], reason: str, file: Path | None
    ) -> None:
        """A message that stays: which rules held it back, and why; `file` is where a policy's rules are."""
        line = {"rules": list(rules), "reason": reason, "file": str(file) if file else None}
        self._write("blocked", task, round_number, line)

    def failed(self, task: str, round_number: int, failure: Failure) -> None:
        """A failure, as it is told to the server."""
        self._write("failure", task, round_number, failure.to_json())

    def state(self, key: str, digest: str, content: Any) -> dict[str, Any]:
        """`{key: digest}`, and `content` with it the first time this digest is written into this file."""
        self._continue()
        if digest in self._stated:
            return {key: digest}
        self._stated.add(digest)
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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._last = line_digest(text)

    def _continue(self) -> None:
        """Takes up what an earlier process of the same job has written."""
        if self._last is not None:
            return
        self._last = ""
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")
        for line in text.splitlines():
            self._last = line_digest(line)
            self._take_up(line)

    def _take_up(self, text: str) -> None:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            return  # half a line of a power cut; the report names it
        self.tasks.add(str(line.get("task")))
        if line.get("event") == "sent":
            self.volumes[int(line["round"])] = int(line["round_bytes"])
            self._stated |= {line[key] for key in ("declaration", "policy") if f"{key}_content" in line}


def line_digest(text: str) -> str:
    """sha256 of a line without its end."""
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()


def declaration_of(shared: SharedSpec, sums: SharedSpec) -> dict[str, Any]:
    """What a run's messages may hold: name -> [shape, dtype] of shared tensors and of sums."""
    return {"shared": spec_to_json(shared), "sums": spec_to_json(sums)}


def declaration_digest(declaration: Mapping[str, Any]) -> str:
    """sha256 by which messages refer to their declaration."""
    return hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()


def tensor_facts(
    declared: Mapping[str, Tensor], travelling: Mapping[str, Tensor], allowed: SharedSpec
) -> dict[str, Any]:
    """What a line says of a message's tensors: `declared` as the learner gave them, `travelling` as sent."""
    facts: dict[str, Any] = {
        "tensors": len(declared),
        "dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in travelling.values()}),
        "bytes": byte_count(travelling),
        "sha256": state_digest(travelling),
    }
    missing = sorted(set(allowed) - set(declared))
    if declared and missing:
        facts["missing"] = missing
    return facts
