# SPDX-License-Identifier: Apache-2.0
"""Progress of a run: phase, round, time left, and each site's last message, from its record and events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from medflare.core.run_record import RunRecord
from medflare.core.sample_drafts import SampleDrafts
from medflare.recipes.progress_view import Board, Follower
from medflare.recipes.site_tasks import newest_drafts, running_tasks
from medflare.reporting.formatting import duration
from medflare.serving.run_index import ServedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Values that a page shows of a run that goes on.

    Attributes:
        phase: as the last event says it; rounds are counted from 1.
        rounds_done, rounds: done, and planned; 0 where that is not known yet.
        seconds_left: of the rounds that remain; None before a round is done, and at the end.
        quiet: seconds since the last event.
        sites: site -> what it is doing, where that can be seen, or the last that was heard of it, with its
            loss where it told one.
        drafts: site -> what its model wrote in the last validation; texts of patients.
    """

    state: str
    phase: str = ""
    rounds_done: int = 0
    rounds: int = 0
    seconds_left: float | None = None
    quiet: float | None = None
    sites: dict[str, str] = field(default_factory=dict)
    drafts: dict[str, SampleDrafts] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the page of the run can still change."""
        return self.state == "running"

    @property
    def words(self) -> list[str]:
        """Facts beside the state, in the order in which one asks for them."""
        words = [self.phase] if self.phase else []
        if self.rounds:
            words.append(f"{self.rounds_done} of {self.rounds} rounds done")
        if self.seconds_left is not None:
            words.append(f"about {duration(self.seconds_left)} of training left")
        if self.quiet is not None and self.running:
            words.append(f"last word {duration(self.quiet)} ago")
        return words


def live_state(
    run: ServedRun, record: RunRecord | None, now: float | None = None, with_drafts: bool = False
) -> LiveState:
    """Return how far a run is.

    Args:
        run: whose events are read.
        record: of the run; None before it has one.
        now: seconds since the epoch.
        with_drafts: whether texts of patients may be shown.
    """
    now = time.time() if now is None else now
    events = Follower(run.progress).new_events() if run.progress is not None else []
    board = Board()
    for event in events:
        board.take(event)
    done = len(record.rounds) if record is not None else 0
    planned = [event["rounds"] for event in events if event["phase"] == "round" and "rounds" in event]
    rounds = int(planned[-1]) if planned else 0
    tasks = running_tasks(run.workspace, board.rows) if run.workspace and run.state == "running" else {}
    shown = with_drafts and run.workspace is not None and run.state == "running"
    drafts = newest_drafts(run.workspace, sorted(board.rows)) if shown and run.workspace else {}
    left = board.seconds_left(now, tasks) if run.state == "running" else None
    return LiveState(
        state=run.state,
        phase=board.title if run.state == "running" else "",
        rounds_done=done,
        rounds=rounds,
        seconds_left=left,
        quiet=max(0.0, now - float(events[-1]["time"])) if events and "time" in events[-1] else None,
        sites={site: str(tasks.get(site) or _last_word(row)) for site, row in sorted(board.rows.items())},
        drafts=drafts,
    )


def _last_word(row: dict[str, object]) -> str:
    verdict, loss = str(row.get("verdict", "")), row.get("loss")
    return f"{verdict}, loss {loss:.4g}" if isinstance(loss, float) else verdict
