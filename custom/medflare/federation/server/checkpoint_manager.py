# SPDX-License-Identifier: Apache-2.0
"""Files of a run on the server's disk: state after every round, best and final adapter, artefact paths."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.run_record import EvaluationRecord, RoundRecord
from medflare.core.tensors import SharedSpec, State
from medflare.federation.server.preparation import common_description
from medflare.federation.server.roster import Roster
from medflare.federation.server.run_folder import RESULT, RunFolder
from medflare.federation.server.run_recorder import DELTA, EPSILON, RunRecorder
from medflare.federation.server.run_state import RunState, save_state
from medflare.federation.server.settings import RoundsSettings
from medflare.models.peft_folder import BEST, FINAL, Card, PeftFolder
from medflare.wire.compression import message_bytes
from medflare.wire.disk_space import RESERVE_BYTES, DiskReserve, free_megabytes
from medflare.wire.durable import replace_folder

MOST_SEEDED = 1 << 30
"""Bytes reserved for seed-generated tensors at most: their shapes are what sites say they are."""


class CheckpointManager:
    """Writes states and results of one run.

    Args:
        folder: of the job, whose content FLARE hands to whoever downloads the job's result.
        store: of the run, which outlives the job: states, and the best adapter so far.
    """

    def __init__(
        self, folder: Path, store: RunFolder, writer: PeftFolder, recorder: RunRecorder, args: RoundsSettings
    ) -> None:
        self.folder, self.store, self.writer = folder, store, writer
        self.recorder, self.args = recorder, args
        self.best: float | None = None
        self._best_before: int | None = None
        self.readable = True
        self.last: tuple[State, RoundRecord] | None = None
        self.reserve = DiskReserve(folder)
        recorder.record.best_metric = args.best_metric

    def expect(self, facts: Mapping[str, Mapping[str, Any]], shared: SharedSpec, bytes_up: int) -> None:
        """Take what the sites declared, and the bytes of one update."""
        record, args = self.recorder.record, self.args
        record.expected_bytes_per_direction = bytes_up
        record.expected_bytes_down = message_bytes(shared, args.downlink)
        self.writer.expect(common_description(facts))
        self.reserve.hold(RESERVE_BYTES + self._adapter_bytes(shared))
        self.recorder.add_sites(facts)

    def _adapter_bytes(self, shared: SharedSpec) -> int:
        """Return a bound on the bytes of an adapter: merged updates may stand beside what is learned."""
        shapes = self.writer.not_communicated.get("shapes", {}).values()
        seeded = min(4 * sum(math.prod(shape) for shape in shapes), MOST_SEEDED)
        return 2 * message_bytes(shared, "float32") + seeded

    def make_room(self) -> str:
        """Give back the reserve and whatever was half written on a full disk; return the run's reason."""
        free = free_megabytes(self.folder)
        self.reserve.release()
        for scratch in (*self.store.path.glob("*/*.tmp"), *self.folder.glob("result/*.tmp")):
            shutil.rmtree(scratch, ignore_errors=True)
        return (
            f"the disk of the server is full: {free} MB free in {self.folder}. Free some space there and "
            "go on with `medflare resume`; the last good adapter, if a round was finished, is in "
            "result/adapter."
        )

    def finish_round(self, number: int, entry: RoundRecord, state: State, roster: Roster) -> None:
        """Take the state after a round; write its adapter if it is the best one."""
        self.last = (state, entry)
        value = entry.mean.get(self.args.best_metric)
        if value is not None and self._better(value):
            self.best, self.recorder.record.best_round = value, number
            self._export(BEST, state, entry, roster)

    def save(self, state: RunState) -> None:
        """Write a state from which the run can go on, and the record."""
        save_state(self.store.state, state)
        self._forget_bests()
        self.recorder.write()

    def go_on_from(self, best: float | None, state: RunState) -> None:
        """Take what an earlier job of the run has written."""
        self.best = best
        self._best_before = self.recorder.record.best_round
        kept = self._kept_best(self._best_before)
        if kept is not None and kept.is_dir():
            shutil.copytree(kept, self.folder / RESULT / BEST, dirs_exist_ok=True)
        rounds = self.recorder.record.rounds
        if rounds:
            self.last = (state.shared, rounds[-1])

    def add_evaluations(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the sites' final evaluations; where their files are on this disk, the record points to them.

        They are in a simulator, whose sites lie beside the server; a hospital's predictions stay there.
        """
        for site, answer in sorted(facts.items()):
            for item in answer["evaluations"]:
                evaluation = EvaluationRecord.model_validate(item)
                evaluation.metrics = {
                    name: estimate
                    for name, estimate in evaluation.metrics.items()
                    if all(math.isfinite(x) for x in (estimate.value, *(estimate.interval or ())))
                }
                beside = Path("../..") / site / self.folder.name / "result" / (evaluation.predictions or "-")
                has_file = evaluation.predictions is not None and (self.folder / beside).is_file()
                evaluation.predictions = str(beside) if has_file else None
                self.recorder.record.evaluations.append(evaluation)
            written = Path("../..") / site / self.folder.name / "result" / FINAL
            if not self.readable and (self.folder / written).is_dir():
                self.recorder.record.artefacts.setdefault("final", str(written))
        self.recorder.write()

    def _better(self, value: float) -> bool:
        if self.best is None:
            return True
        return value < self.best if self.args.best_mode == "min" else value > self.best

    def export_final(self, roster: Roster) -> None:
        """Export the last good state; nothing if no round was finished, or the state cannot be read here."""
        if self.last is not None:
            self._export(FINAL, *self.last, roster)

    def card(self, entry: RoundRecord, sites: int) -> Card:
        """Return what the model card says of the state after a round."""
        record = self.recorder.record
        site = record.sites[min(record.sites)]
        return Card(
            job=record.job,
            method=record.method,
            run_id=record.run_id,
            base_model=site.backbone,
            fingerprint=site.fingerprint,
            sites=sites,
            rounds=entry.round + 1,
            metrics={name: value for name, value in entry.mean.items() if name not in (EPSILON, DELTA)},
            epsilon=record.epsilon,
            delta=record.delta,
        )

    def _export(self, name: str, state: State, entry: RoundRecord, roster: Roster) -> None:
        if not self.readable:
            return
        card = self.card(entry, len(roster.sites))
        target = self.writer.write(self.folder / "result" / name, state, card)
        self.recorder.record.artefacts["final" if name == FINAL else name] = str(
            target.relative_to(self.folder)
        )
        kept = self._kept_best(entry.round)
        if name == BEST and kept is not None:
            replace_folder(target, kept)

    def _kept_best(self, number: int | None) -> Path | None:
        """Return where the adapter of the best round is kept; None while there is no such round.

        Each has a folder of its own, since a state may be older than the newest of them: a run that goes on
        from there may find another round to be the best.
        """
        return None if number is None else self.store.path / RESULT / f"{BEST}-{number:04d}"

    def _forget_bests(self) -> None:
        """Remove what neither the state nor the one before calls the best."""
        best = self.recorder.record.best_round
        kept = {self._kept_best(best), self._kept_best(self._best_before)}
        for folder in (self.store.path / RESULT).glob(f"{BEST}-*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        self._best_before = best
