# SPDX-License-Identifier: Apache-2.0
"""Permitted contents of a site's replies, task by task: facts of fixed names and types, declared tensors.

Every function returns problems as texts that may leave the site: they quote names, never values.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.run_record import EvaluationRecord
from medflare.core.sketch import Sketch
from medflare.core.tensors import SharedSpec
from medflare.knowledge.minhash import MOST_HASHES
from medflare.knowledge.private_intersection import MOST, message_bytes
from medflare.knowledge.sketch_key import VOCABULARY
from medflare.wire.first_values import FACT as FIRST_VALUES
from medflare.wire.first_values import FIELDS, NORM, SHA256

NEW_SKETCH, SAME_SKETCH, NO_SKETCH = SKETCH_STATES = ("new", "same", "none")
"""Fact `state` of a reply to 'sketch': a sketch comes with it; the server has the last one; there is none."""
EXACT = COUNT, OFFER, ANSWER, COMPARE = ("count", "offer", "answer", "compare")
"""Tasks of the exact comparison of graphs: sizes, encrypted elements, sizes of what is shared."""
COUNTED, NO_GRAPH, NO_PACKAGE, FEW, MANY = COUNT_STATES = ("counted", "none", "no package", "few", "many")
"""Fact `state` of a reply to 'count': the size comes with it, or one of four reasons why it does not."""
REQUEST, SETUP, RESPONSE = "request", "setup", "response"
"""Messages of encrypted elements from one site to another."""
MESSAGES = {OFFER: frozenset({REQUEST, SETUP}), ANSWER: frozenset({RESPONSE})}
"""Task -> names of the messages, of which its reply holds one."""
SECURE_SUM = "secure_sum"
"""The fact that holds a step of a secure sum: keys, encrypted shares, digests, signatures."""
FACTS: dict[str, frozenset[str]] = {
    "prepare": frozenset({"describe", "shared", "sums", "separate_sums", FIRST_VALUES, "method", "seconds"}),
    "sketch": frozenset({"state", "sketch", "examples", "vocabulary", "seconds"}),
    "count": frozenset({"state", "elements", "examples", "key", "vocabulary", "seconds"}),
    "offer": frozenset({"partner", "examples", "seconds"}),
    "answer": frozenset({"partner", "examples", "seconds"}),
    "compare": frozenset({"partner", "examples", "shared", "seconds"}),
    "initialise": frozenset({"seconds"}),
    "fit": frozenset({"examples", "factor", "metrics", "seconds", SECURE_SUM}),
    "evaluate": frozenset({"metrics", "seconds", SECURE_SUM}),
    "finish": frozenset({"evaluations", "seconds", SECURE_SUM}),
    "keys": frozenset({SECURE_SUM}),
    "shares": frozenset({SECURE_SUM}),
    "confirm": frozenset({SECURE_SUM}),
    "reveal": frozenset({SECURE_SUM}),
}
"""Task -> facts that its reply may hold."""
COUNT_FACTS = frozenset({"elements", "examples", "key", "vocabulary"})
"""Facts that come with the state 'counted' only."""
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
        "paper",
        "protection",
        "validation",
    }
)
"""Facts that a site may give about itself before round 1: the fields of `SiteDescription`, written out.

A field added there leaves no site until somebody has decided here that it may."""
METRIC = re.compile(r"[A-Za-z][A-Za-z0-9_.@-]{0,47}(/[a-z][a-z0-9_ -]{0,47})?")
"""A metric's name, and after a slash the condition it measures: `label_f1/pleural effusion`."""
MAX_METRICS = 400
SECURE_SUM_BYTES = 2**18
"""Most bytes of a step of a secure sum: certificates, and a few hundred for each of 500 other sites."""
_VOCABULARY = re.compile(rf"[0-9a-f]{{{2 * VOCABULARY}}}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_PLAIN = re.compile(r"[A-Za-z0-9_.:/@-]{1,160}")


def fact_problems(task: str, facts: Mapping[str, Any], site: str) -> list[str]:
    """Return the facts of a reply that were not declared, or are of another type than declared.

    Args:
        site: name of the replying site; evaluations of another one are refused.
    """
    problems = [f"fact {shown(key)}" for key in sorted(set(facts) - FACTS.get(task, frozenset()))]
    problems += [f"fact '{key}' of another kind" for key in NUMBERS if not _is_number(facts.get(key, 1))]
    described = set(facts.get("describe", {}))
    problems += [f"description {shown(key)}" for key in sorted(described - DESCRIPTION)]
    problems += _metric_problems(facts.get("metrics", {}))
    for item in facts.get("evaluations", []):
        problems += _evaluation_problems(item, site)
    if SECURE_SUM in facts:
        problems += _secure_sum_problems(facts[SECURE_SUM])
    if task == "sketch":
        problems += _sketch_problems(facts, site)
    if task == COUNT:
        problems += _count_problems(facts)
    if task in (OFFER, ANSWER, COMPARE):
        checked = {"partner": _is_name(facts.get("partner")), "examples": _is_count(facts.get("examples"))}
        problems += [f"fact '{name}' of another kind" for name, valid in checked.items() if not valid]
    if task == COMPARE and not _is_count(facts.get("shared")):
        problems.append("fact 'shared' of another kind")
    return problems


def first_value_problems(values: Any, declared: SharedSpec) -> list[str]:
    """Check what a site says of its tensors before round 1: of declared ones a digest and a norm, no more."""
    if not isinstance(values, Mapping):
        return [f"fact '{FIRST_VALUES}' of another kind"]
    problems = [f"first value of tensor {shown(name)}" for name in sorted(set(values) - set(declared))]
    for name in sorted(set(values) & set(declared)):
        entry = values[name]
        digest = entry.get(SHA256) if isinstance(entry, Mapping) and set(entry) == set(FIELDS) else None
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest) or not _is_number(entry[NORM]):
            problems.append(f"first value of '{name}' that is no digest and norm")
    return problems


def message_problems(task: str, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return why a message to another site is none: it must be one vector of bytes, no longer than elements
    are."""
    if len(tensors) != 1 or not set(tensors) <= MESSAGES[task]:
        return [f"{len(tensors)} tensors where one is expected, {' or '.join(sorted(MESSAGES[task]))}"]
    ((name, value),) = tensors.items()
    if value.dtype != torch.uint8 or value.dim() != 1:
        return [f"{name} of dtype {value.dtype} and shape {tuple(value.shape)}; expected bytes"]
    if value.numel() > message_bytes(MOST):
        return [f"{name} of {value.numel()} bytes, more than {message_bytes(MOST)}"]
    return []


def tensor_problems(tensors: Mapping[str, Tensor], allowed: SharedSpec) -> list[str]:
    """Return the tensors of a reply that were not declared, or have another shape."""
    problems = []
    for name, value in sorted(tensors.items()):
        if name not in allowed:
            problems.append(f"tensor {shown(name)}")
        elif tuple(value.shape) != tuple(allowed[name][0]):
            problems.append(f"tensor '{name}' of shape {tuple(value.shape)}")
    return problems


def shown(name: str) -> str:
    """Return an undeclared name as it may stand in a refusal: quoted if it looks like a plain name.

    A name could be chosen to carry data out; unusual ones are described by their length.
    """
    return f"'{name}'" if _PLAIN.fullmatch(name) else f"with an unusual name of {len(name)} characters"


def _secure_sum_problems(step: Any) -> list[str]:
    if not isinstance(step, dict):
        return [f"fact '{SECURE_SUM}' of another kind"]
    try:
        size = len(json.dumps(step))
    except (TypeError, ValueError):
        return [f"fact '{SECURE_SUM}' of another kind"]
    if size > SECURE_SUM_BYTES:
        return [f"fact '{SECURE_SUM}' of {size} bytes, more than {SECURE_SUM_BYTES}"]
    return []


def sketch_bytes(facts: Mapping[str, Any]) -> bytes:
    """Return the sketch among a reply's facts, empty where there is none.

    Raises:
        ValueError: the text is no base64.
    """
    return base64.b64decode(facts.get("sketch", ""), validate=True)


def _sketch_problems(facts: Mapping[str, Any], site: str) -> list[str]:
    """Check that a sketch has the length its header states and nothing else; other states bring none."""
    state = facts.get("state")
    if state not in SKETCH_STATES:
        return ["fact 'state' of another kind"]
    if state != NEW_SKETCH:
        extra = sorted({"sketch", "vocabulary"} & set(facts))
        return [f"fact '{name}' beside a state that has none" for name in extra]
    try:
        sketch = Sketch.from_bytes(sketch_bytes(facts), site)
    except (UpdateError, TypeError, ValueError):
        return ["fact 'sketch' that is no sketch"]
    if len(sketch.values) > MOST_HASHES:
        return [f"fact 'sketch' of {len(sketch.values)} hashes, more than {MOST_HASHES}"]
    return _vocabulary_problems(facts)


def _vocabulary_problems(facts: Mapping[str, Any]) -> list[str]:
    """Check the vocabulary's digest, which may be missing."""
    digest = facts.get("vocabulary", "0" * (2 * VOCABULARY))
    valid = isinstance(digest, str) and _VOCABULARY.fullmatch(digest)
    return [] if valid else ["fact 'vocabulary' that is no digest"]


def _count_problems(facts: Mapping[str, Any]) -> list[str]:
    """Check that a count comes with the number of texts and the key's fingerprint; other states bring
    neither."""
    state, extra = facts.get("state"), sorted(COUNT_FACTS & set(facts))
    if state not in COUNT_STATES:
        return ["fact 'state' of another kind"]
    if state != COUNTED:
        return [f"fact '{name}' beside a state that has none" for name in extra]
    counts = ("elements", "examples")
    problems = [f"fact '{name}' of another kind" for name in counts if not _is_count(facts.get(name))]
    if not isinstance(facts.get("key"), str) or not _FINGERPRINT.fullmatch(facts["key"]):
        problems.append("fact 'key' that is no fingerprint")
    return problems + _vocabulary_problems(facts)


def _evaluation_problems(item: Mapping[str, Any], site: str) -> list[str]:
    """Check that an evaluation holds this site's aggregates and the bare name of a file that stays here."""
    try:
        record = EvaluationRecord.model_validate(item)
    except ValidationError as error:
        return [f"evaluation with {error.error_count()} fields of another kind"]
    problems = _metric_problems({name: estimate.value for name, estimate in record.metrics.items()})
    if record.site != site:
        problems.append(f"evaluation of site {shown(record.site)}")
    if record.predictions is not None and Path(record.predictions).name != record.predictions:
        problems.append("path of the predictions")
    return problems


def _metric_problems(metrics: Mapping[str, Any]) -> list[str]:
    if len(metrics) > MAX_METRICS:
        return [f"{len(metrics)} metrics, more than {MAX_METRICS}"]
    return [
        f"metric {shown(name)}"
        for name, value in sorted(metrics.items())
        if not METRIC.fullmatch(name) or not _is_number(value)
    ]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
