# SPDX-License-Identifier: Apache-2.0
"""The one point through which every reply leaves a site, in this order (design.md 3):

allow-list of declared names and shapes -> compression -> ledger. Steps that change values stand between the
allow-list and the ledger (clip and noise before compression, masks and encryption after it), so that the
ledger holds the digest of what was sent.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from medflare.evaluation.run_record import EvaluationRecord
from medflare.federation import compression, wire
from medflare.federation.failures import EgressError
from medflare.federation.worker_session import Result
from medflare.learners.base import SharedSpec, State

Compress = Callable[[Mapping[str, Tensor], str], State]
"""(tensors, kind) -> what travels: `compression.compress`, or a site's `ErrorFeedback.compress`."""
FACTS: dict[str, frozenset[str]] = {
    "prepare": frozenset({"describe", "shared", "sums", "method", "settings", "seconds"}),
    "initialise": frozenset({"seconds"}),
    "fit": frozenset({"examples", "factor", "metrics", "seconds"}),
    "evaluate": frozenset({"metrics", "seconds"}),
    "finish": frozenset({"evaluations", "seconds"}),
}
"""The facts each task may answer with."""
NUMBERS = ("examples", "factor")
"""Facts that are one number."""
DESCRIPTION = frozenset(
    {
        "backbone",
        "parameters",
        "adapter_config",
        "export",
        "examples",
        "skipped",
        "heterogeneity",
        "settings",
        "paper",
        "validation",
    }
)
"""What a site may say about itself before round 1: counts, public facts, a digest of the notes all share."""
METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_.@-]{0,47}(/[a-z][a-z0-9_ -]{0,47})?")
"""A metric's name, and after a slash the condition it is about: `label_f1/pleural effusion`."""
MAX_METRICS = 400


@dataclass(slots=True)
class Egress:
    """The site's door for one run: what was declared, and the ledger of what left.

    `declare` may be called once; a second declaration must say the same.
    """

    ledger: Path
    site: str
    job: str
    uplink: compression.Uplink
    shared: SharedSpec | None = None
    sums: SharedSpec | None = None

    def declare(self, shared: SharedSpec, sums: SharedSpec) -> None:
        """Fixes what may leave; EgressError if it differs from an earlier declaration."""
        if self.shared is not None and (self.shared, self.sums) != (shared, sums):
            raise EgressError("the learner declares other tensors than before; a declaration cannot change.")
        self.shared, self.sums = shared, sums

    def send(
        self, task: str, round_number: int, result: Result, compress: Compress = compression.compress
    ) -> Result:
        """The result as it leaves; EgressError names everything that may not."""
        self._check(task, result)
        kind = compression.initial_kind(self.uplink) if task == "initialise" else self.uplink
        tensors = compress(result.tensors, kind)
        self._write(task, round_number, result.facts, tensors, kind if tensors else None)
        return Result(result.facts, tensors)

    def _check(self, task: str, result: Result) -> None:
        problems = [f"fact '{key}'" for key in sorted(set(result.facts) - FACTS.get(task, frozenset()))]
        problems += [
            f"fact '{key}' of another kind" for key in NUMBERS if not _is_number(result.facts.get(key, 1))
        ]
        described = set(result.facts.get("describe", {}))
        problems += [f"description '{key}'" for key in sorted(described - DESCRIPTION)]
        problems += _metric_problems(result.facts.get("metrics", {}))
        for item in result.facts.get("evaluations", []):
            problems += _evaluation_problems(item, self.site)
        problems += _tensor_problems(result.tensors, self._allowed(task))
        if problems:
            raise EgressError(f"{task}: not declared, so it stays here: {'; '.join(problems[:8])}.")

    def _allowed(self, task: str) -> SharedSpec:
        if task not in ("initialise", "fit"):
            return {}
        if self.shared is None or self.sums is None:
            raise EgressError(f"{task}: nothing was declared yet; a run starts with 'prepare'.")
        sums = {wire.SUM + name: spec for name, spec in self.sums.items()} if task == "fit" else {}
        return {**self.shared, **sums}

    def _write(
        self,
        task: str,
        round_number: int,
        facts: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        compressed: str | None,
    ) -> None:
        """Appends one line to the ledger."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "site": self.site,
            "job": self.job,
            "round": round_number,
            "task": task,
            "tensors": len(tensors),
            "compression": compressed,
            "dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in tensors.values()}),
            "bytes": wire.byte_count(tensors),
            "sha256": wire.digest(tensors),
            "facts": sorted(facts),
            "facts_bytes": len(json.dumps(facts)),
        }
        self.ledger.parent.mkdir(parents=True, exist_ok=True)
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _tensor_problems(tensors: Mapping[str, Tensor], allowed: SharedSpec) -> list[str]:
    problems = []
    for name, value in sorted(tensors.items()):
        if name not in allowed:
            problems.append(f"tensor '{name}'")
        elif tuple(value.shape) != tuple(allowed[name][0]):
            problems.append(f"tensor '{name}' of shape {tuple(value.shape)}")
    return problems


def _evaluation_problems(item: Mapping[str, Any], site: str) -> list[str]:
    """An evaluation is one site's aggregates and the bare name of a file that stays here."""
    try:
        record = EvaluationRecord.model_validate(item)
    except ValidationError as error:
        return [f"evaluation with {error.error_count()} fields of another kind"]
    problems = _metric_problems({name: found.value for name, found in record.metrics.items()})
    if record.site != site:
        problems.append(f"evaluation of site '{record.site}'")
    if record.predictions is not None and Path(record.predictions).name != record.predictions:
        problems.append("path of the predictions")
    return problems


def _metric_problems(metrics: Mapping[str, Any]) -> list[str]:
    if len(metrics) > MAX_METRICS:
        return [f"{len(metrics)} metrics, more than {MAX_METRICS}"]
    return [
        f"metric '{name}'"
        for name, value in sorted(metrics.items())
        if not METRIC.fullmatch(name) or not _is_number(value)
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
