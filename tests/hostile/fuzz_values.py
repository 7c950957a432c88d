# SPDX-License-Identifier: Apache-2.0
"""What a fuzzer sends: values that nobody expects, documents and bytes changed in a few places."""

from __future__ import annotations

import copy
import json
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

SECONDS, MEGABYTES = 20.0, 1024
"""Most that one attempt may take, and most that it may add to the memory of the process."""
T = TypeVar("T")

TEXTS = (
    "",
    "../../x",
    "/etc/passwd",
    "\x1b[2J\x1b]0;t\x07",
    "\ud800",
    "\u202e",
    "\x00",
    "A" * 100_000,
    "9" * 5000,
    "{$HOME}",
    "2024-99-99",
    "!!python/object/apply:os.system [x]",
)
NUMBERS = (-1, 0, 2**31, 2**63, 2**64, 10**30, -(10**400), 1e308, -0.0, float("nan"), float("inf"))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.text(max_size=20),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
"""Any JSON value, with a weight on those that break readers."""


def examples(count: int) -> settings:
    """So many examples in the repository's profile, `FUZZ` times as many (40) in a search."""
    if settings.default.derandomize:  # a failure here is as it was found; a search makes it small
        phases = (Phase.explicit, Phase.generate)
        return settings(max_examples=count, phases=phases, suppress_health_check=list(HealthCheck))
    more = int(os.environ.get("FUZZ", "40"))
    return settings(max_examples=count * more, suppress_health_check=list(HealthCheck))


def sendable(value: Any) -> Any:
    """Return a value without what FLARE's encoding cannot carry: it would never reach the other side."""
    if isinstance(value, dict):
        return {sendable(key): sendable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [sendable(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return 2**64 - 1
    return value


@st.composite
def changed(draw: st.DrawFn, document: Any, values: st.SearchStrategy[Any] = VALUES) -> Any:
    """A copy of a document of which up to three places are replaced, removed or added to."""
    result = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = result
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            inner = [key for key in keys if isinstance(place[key], dict | list) and place[key]]
            if not inner or draw(st.booleans()):
                break
            place = place[draw(st.sampled_from(inner))]
        action = draw(st.sampled_from(("replace", "replace", "remove", "add")))
        if action == "add" or not keys:
            new = draw(values)
            if isinstance(place, dict):
                place[draw(st.text(max_size=8) | st.sampled_from(keys or ["x"]))] = new
            else:
                place.append(new)
        elif action == "remove":
            del place[draw(st.sampled_from(keys))]
        else:
            place[draw(st.sampled_from(keys))] = draw(values)
    return result


@st.composite
def broken_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes cut off, replaced, or with something in between that parsers stumble over."""
    start = draw(st.integers(0, len(content)))
    length = draw(st.integers(0, 8))
    inserted = draw(
        st.binary(max_size=12)
        | st.sampled_from(
            (
                b"[" * 100_000,
                b'{"a":' * 50_000,
                b"9" * 5000,
                b"\xff\xfe",
                b"\x00",
                b"\n- &a [*a]\n",
                b"\n2024-99-99: 1\n",
                b"\n1: {2: 3}\n",
                b"\n? [a]\n: b\n",
                b"\n<<: 3\n",
                b"\n!!python/name:os.system : 1\n",
                b"\n.nan: .inf\n",
                b"\n0b: 1_\n",
            )
        )
    )
    rest = b"" if draw(st.integers(0, 4)) == 0 else content[start + length :]
    return content[:start] + inserted + rest


def any_json(document: Any) -> st.SearchStrategy[bytes]:
    """Bytes of a JSON file: a changed document, or the document's own bytes broken."""
    written = json.dumps(document).encode()
    return changed(document).map(lambda value: json.dumps(value).encode()) | broken_bytes(written)


@contextmanager
def bounded() -> Iterator[None]:
    """Fail where what runs inside took too long, or much memory."""
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    seconds = time.process_time() - started
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert seconds < SECONDS, f"took {seconds:.1f} s"
    assert grown < MEGABYTES, f"took {grown} MB"


def attempt(read: Callable[[], T], *refusals: type[Exception]) -> T | None:
    """Return what a reader makes of hostile input, None where it refuses; any other exception passes through.

    A refusal is an error of the kinds named, with a text that is short enough to be read.
    """
    with bounded():
        try:
            return read()
        except refusals as error:
            return None if str(error) else pytest.fail(f"{type(error).__name__} says nothing")


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder, and return it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
