# SPDX-License-Identifier: Apache-2.0
"""Saves and restores what a run knows between two exchanges, so that it survives a crash.

`capture` and `restore` are each other's inverse. What is not in a state is found again as at the beginning:
`prepare` is repeated, and its answers must be those that the run began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.core.errors import RunError
from medflare.core.hints import RoundHints
from medflare.core.run_record import Resumption
from medflare.core.sketch import Sketch
from medflare.federation.server.run import GlobalModel, Run
from medflare.federation.server.run_state import RunState
from medflare.federation.server.run_values import SavedRun, SketchValues
from medflare.federation.server.sketch_exchange import Sketches
from medflare.wire.digest import json_digest

REPEATED = ("shared", "sums", "separate_sums")
"""Facts of `prepare` that must be the same again, besides the backbone and the counts of examples."""


def capture(run: Run, exchanges_done: int) -> RunState:
    """Return the state of a run after so many exchanges; before the first one, 0."""
    tensors, _ = run.protection.outgoing(run.model.tensors, {})
    sketches = run.sketches.sketches
    values = {
        "roster": run.roster.to_json(),
        "best": run.checkpoints.best,
        "protection": run.protection.state_values(),
        "simulated_seconds": run.timings.now,
        "summed": run.model.summed,
        "agreed_hints": run.agreed_hints.to_json(),
        "norms": run.aggregator.limits.change.latest,
        "sum_norms": run.aggregator.limits.sums.latest,
        "lost_in_a_row": run.lost_in_a_row,
        "begun": run.begun,
        "declared": {site: declaration_digest(facts) for site, facts in run.declared.items()},
        "sketches": {
            "held": {site: sketch.to_bytes().hex() for site, sketch in sketches.held.items()},
            "texts": sketches.texts,
            "without": sketches.without,
            "vocabularies": sketches.vocabularies,
            "renewed": sketches.renewed,
            "received_at": run.sketches.received_at,
        },
        "early_traffic": {site: item.model_dump() for site, item in run.early_traffic.items()},
    }
    return RunState(
        exchanges_done=exchanges_done,
        shared=tensors,
        totals=run.model.totals,
        rule=run.rule.state_dict(),
        values=values,
        record=run.recorder.text(),
    )


def restore(run: Run, saved: SavedRun) -> None:
    """Put a run that has just been prepared again back to where its state was written.

    Raises:
        RunError: too few sites declare what they declared when the run began.
    """
    state, values = saved.state, saved.values
    _check_declarations(run, values.declared)
    shared = run.protection.load_state(values.protection, state.shared)
    run.model = GlobalModel(tensors=shared, totals=state.totals, summed=values.summed)
    run.rule.load_state_dict(state.rule)
    run.agreed_hints = RoundHints.from_json(values.agreed_hints)
    run.checkpoints.writer.export |= run.agreed_hints.to_json()
    run.aggregator.limits.change.latest = values.norms
    run.aggregator.limits.sums.latest = values.sum_norms
    run.lost_in_a_row, run.begun = values.lost_in_a_row, values.begun
    run.timings.go_on_at(values.simulated_seconds)
    run.checkpoints.go_on_from(values.best, state)
    run.early_traffic = values.early_traffic
    _restore_sketches(run, values.sketches)


def _restore_sketches(run: Run, kept: SketchValues) -> None:
    """Put back the sketches that the server held."""
    held = {site: bytes.fromhex(data) for site, data in kept.held.items()}
    run.sketches.sketches = Sketches(
        held={site: Sketch.from_bytes(data, site) for site, data in held.items()},
        texts=kept.texts,
        without=kept.without,
        vocabularies=kept.vocabularies,
        renewed=kept.renewed,
    )
    run.sketches.received_at = kept.received_at


def declaration_digest(facts: Mapping[str, Any]) -> str:
    """Return the digest of what a site must declare alike each time: tensors, backbone, examples."""
    describe = facts.get("describe", {})
    same = {name: facts.get(name) for name in REPEATED}
    same |= {name: describe.get(name) for name in ("backbone", "examples", "adapter_config")}
    return json_digest(same)


def _check_declarations(run: Run, before: Mapping[str, str]) -> None:
    """Leave out sites that are not what they were: a run goes on with the data it began with."""
    changed = {
        site: "it declares another backbone, other tensors or other numbers of examples than when the run "
        "began. Put its data and model back, or start a new run"
        for site, facts in run.declared.items()
        if site in before and before[site] != declaration_digest(facts)
    }
    for site, reason in changed.items():
        run.roster.exclude(site, reason)
        run.progress.event("excluded", site=site, reason=reason)
    left = [site for site in run.declared if site not in run.roster.excluded]
    required = run.quorum().everybody().required
    if len(left) < required:
        reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(run.roster.excluded.items()))
        raise RunError(f"the run cannot go on: {len(left)} sites are left, {required} needed. {reasons}.")


def note_resumption(run: Run, job: str, exchanges_done: int) -> None:
    """Write into the record that the run goes on, from where, and in which job."""
    resumption = Resumption(job=job, exchange=exchanges_done, at=run.recorder.now())
    run.recorder.record.resumptions.append(resumption)
    run.recorder.write()
    run.progress.event("resumed", exchange=exchanges_done, job=job, sites=run.roster.eligible(exchanges_done))
