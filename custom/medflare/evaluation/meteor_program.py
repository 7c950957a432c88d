# SPDX-License-Identifier: Apache-2.0
"""METEOR's Java program: one process, which the processes of a run on this machine can share.

It takes eight processor seconds to load its paraphrases, and half a gigabyte. A simulated run has all its
hospitals on one machine, so `medflare run` offers one program to them (`shared_program`); a hospital of its
own starts its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

Pair = tuple[str, list[str]]
"""A hypothesis and its references."""
ADDRESS = "MEDFLARE_METEOR"
"""Variable with the path of the socket at which a shared program answers."""
JAVA = ("java", "-XX:+UseSerialGC", "-Xmx1500m", "-jar", "meteor-1.5.jar", "-", "-", "-stdio", "-l", "en")
"""One thread collects garbage: with many, beside trainings, most of the processor time is theirs."""


def _folder() -> Path:
    spec = find_spec("pycocoevalcap.meteor")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


class MeteorProgram:
    """The running program; whoever asks waits for its turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [*JAVA, "-norm"],
            cwd=_folder(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        atexit.register(self.close)

    def lines(self, pairs: Sequence[Pair]) -> list[str]:
        """Return the program's line of counts for each pair.

        Raises:
            RuntimeError: the program has ended.
        """
        with self._lock:
            return [self._line(hypothesis, references) for hypothesis, references in pairs]

    def _line(self, hypothesis: str, references: Sequence[str]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # As coco-caption asks: the bars would end a field, and two blanks an empty word.
        plain = hypothesis.replace("|||", "").replace("  ", " ")
        fields = [" ".join(field.splitlines()) for field in (*references, plain)]
        try:
            self._process.stdin.write(" ||| ".join(("SCORE", *fields)) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline().strip()
        except OSError as error:
            raise RuntimeError(f"METEOR's Java program has ended: {error}") from error
        if not line:
            raise RuntimeError("METEOR's Java program has ended; too little memory is the usual reason.")
        return line

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()


@functools.cache
def own_program() -> MeteorProgram:
    """Return this process's program, started when it is first asked for."""
    return MeteorProgram()


def meteor_lines(pairs: Sequence[Pair]) -> list[str]:
    """Return the program's line of counts for each pair, from the shared program if one answers."""
    address = os.environ.get(ADDRESS)
    if address:
        with suppress(OSError, ValueError):
            return _asked(address, pairs)
    return own_program().lines(pairs)


def _asked(address: str, pairs: Sequence[Pair]) -> list[str]:
    """Return what the program at `address` says; ValueError where it answers with less."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(address)
        channel.sendall((json.dumps(list(pairs)) + "\n").encode())
        with channel.makefile(encoding="utf-8") as answer:
            lines: list[str] = json.loads(answer.readline())
    if len(lines) != len(pairs):
        raise ValueError("not as many lines as pairs")
    return lines


@contextmanager
def shared_program() -> Iterator[None]:
    """Offer one program to this process and those it starts while inside; started at the first question."""
    with tempfile.TemporaryDirectory(prefix="medflare-meteor-") as folder:  # readable by its owner alone
        address = str(Path(folder) / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            threading.Thread(target=_serve, args=(listener,), daemon=True).start()
            before = os.environ.get(ADDRESS)
            os.environ[ADDRESS] = address
            try:
                yield
            finally:
                os.environ.pop(ADDRESS)
                if before is not None:
                    os.environ[ADDRESS] = before
                with suppress(OSError):  # wakes the thread, which then ends
                    listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    """Answer one process after the other until the listener is closed."""
    while True:
        try:
            channel, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(channel,), daemon=True).start()


def _answer(channel: socket.socket) -> None:
    """Answer one question; whoever gets no answer starts a program of its own."""
    with channel, suppress(OSError, ValueError, RuntimeError):
        with channel.makefile(encoding="utf-8") as question:
            pairs: list[Pair] = [(text, list(refs)) for text, refs in json.loads(question.readline())]
        channel.sendall((json.dumps(own_program().lines(pairs)) + "\n").encode())
