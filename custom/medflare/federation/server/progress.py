# SPDX-License-Identifier: Apache-2.0
"""Live progress from the server: events in `progress.jsonl`, TensorBoard curves, FLARE's own statistics.

`nvflare job monitor` shows the current state because the component answers the statistics event, and a
console can ask for it through `Session.do_app_command(job, "medflare.progress", {})`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError
from medflare.federation.engine import EventType, FLComponent, FLContext, GroupInfoCollector, InfoCollector
from medflare.federation.heartbeat import ENDS, Heartbeat, Hooks, read_hooks

TOPIC = "medflare.progress"


class ProgressReporter(FLComponent):
    """Writes one JSON line for each event and keeps the latest state for whoever asks."""

    def __init__(self, tensorboard: bool = True) -> None:
        super().__init__()
        self.tensorboard = tensorboard
        self.state: dict[str, Any] = {"phase": "starting"}
        self._file: Path | None = None
        self._curves: Any = None
        self._heartbeat: Heartbeat | None = None

    def open(self, run_folder: Path) -> None:
        """Start writing into a run's folder."""
        run_folder.mkdir(parents=True, exist_ok=True)
        self._file = run_folder / "progress.jsonl"
        if self.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._curves = SummaryWriter(str(run_folder / "tb_events"))

    def watch(self, kit: Path, deadline: float, facts: Mapping[str, Any]) -> None:
        """Tell the server's operator when the run stalls or ends, as `local/medflare.yaml` of the kit says.

        Args:
            deadline: seconds that a site may take for a task.
            facts: of the run, for the operator's command.
        """
        try:
            hooks = read_hooks(kit)
        except ConfigError as error:  # whoever is not told must not lose the run too
            self.logger.error(f"nobody will be told how the run goes: {error}")
            hooks = Hooks()
        self._heartbeat = Heartbeat(hooks, deadline, facts, self.logger.warning, self._stalled)
        self._heartbeat.start()

    def _stalled(self, seconds: float) -> None:
        self.event("stalled", reason=f"no progress for {seconds:.0f} s")

    def event(self, phase: str, **facts: Any) -> None:
        """Report one event; facts are JSON types."""
        self.state.update(phase=phase, **facts)
        line = {"time": round(time.time(), 3), "phase": phase, **facts}
        if self._file is not None:
            try:
                with self._file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            except OSError as error:  # a view of the run must not end it; what it needs to write, will
                self.logger.warning(f"progress.jsonl: {error}")
        self.logger.info(" ".join(f"{key}={value}" for key, value in line.items() if key != "time"))
        if self._heartbeat is not None:
            self._heartbeat.progress(line)
            if phase in ENDS:
                self._heartbeat.end(phase, str(facts.get("reason", "")))

    def curves(self, step: int, site: str, values: Mapping[str, float]) -> None:
        """Add points to TensorBoard curves, one for each metric and site (`mean`, `server` included)."""
        if self._curves is None:
            return
        try:
            for name, value in values.items():
                if math.isfinite(value):
                    self._curves.add_scalar(f"{name}/{site}", value, step)
            self._curves.flush()
        except OSError as error:
            self.logger.warning(f"no more curves: {error}")
            self._curves = None

    def weights(self, step: int, place: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Report each update's weight as the rule has it, and its loss where the server scored it.

        Args:
            step: number of the exchange, of the curves.
            place: its round, and visit where rounds have some.
        """
        losses = report.get("losses", {})
        for site, weight in sorted(report.get("weights", {}).items()):
            values = {"weight": weight} | ({"server_loss": losses[site]} if site in losses else {})
            self.event("weighed", **place, site=site, **values)
            self.curves(step, site, values)

    def close(self) -> None:
        """Watch the run no longer, and close the curves' file."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        curves, self._curves = self._curves, None
        if curves is not None:
            with suppress(OSError):
                curves.close()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_app_command(TOPIC, self.on_command)
        elif event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            if isinstance(collector, GroupInfoCollector):
                collector.add_info("Progress", dict(self.state))
        elif event_type == EventType.END_RUN:
            self.close()

    def on_command(
        self, topic: str, data: Any, fl_ctx: FLContext, *others: Any, **more: Any
    ) -> dict[str, Any]:
        """Return the latest state for a console."""
        return dict(self.state)
