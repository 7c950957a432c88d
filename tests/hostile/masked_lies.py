# SPDX-License-Identifier: Apache-2.0
"""Masked sums as a lying server runs them, with the real coordinator and FLARE's encoding in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lying_server import Answer, LyingServer

from medflare.core.tensors import SharedSpec, State
from medflare.protections.base import layout_of
from medflare.protocol.messages import work_digest
from medflare.secure_aggregation.coordinator import Coordinator
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked_update import Masked
from medflare.secure_aggregation.masking_errors import MaskingError
from medflare.secure_aggregation.round_parameters import RoundParameters

FOUR = tuple(f"site-{k}" for k in range(1, 5))
ADAPTER = "adapter.base_model.model.layer.lora_A.weight"
SPEC: SharedSpec = {ADAPTER: ((1, 4), torch.float32), "head.weight": ((2, 3), torch.float32)}
Make = Callable[..., LyingServer]


@dataclass(frozen=True, kw_only=True)
class Round:
    """One masked round as a lying server runs it; everything in it is the server's choice.

    Attributes:
        sites: who is asked; survivors: whom the server names as such, by default all who sent.
        asked: who is asked to confirm and to reveal, by default all survivors.
        terms: changes of the agreed parameters; plan, options: of the training request.
        sums: what is asked for in place of updates.
        task: of the request for the summands; sums of profiles ("fit") come with no state.
    """

    run_id: str = "run-1"
    number: int = 0
    job: str = "job"
    sites: Sequence[str] = FOUR
    survivors: Sequence[str] | None = None
    asked: Sequence[str] | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sums: SharedSpec | None = None
    task: str = "fit"


class Refused(Exception):  # noqa: N818
    """Too few sites went along with the server; says what each of the others answered."""


class MaskedLies:
    """Runs masked rounds with the real coordinator, whose checks of sites a lying server can use as well."""

    def __init__(self, server: LyingServer, **options: Any) -> None:
        self.server, self.options = server, options
        self.answers: dict[str, Answer] = {}
        self.prepare()
        self.state: State = server.initial_state()

    def prepare(self, **changes: Any) -> None:
        for answer in self.server.prepare(options=self.options, **changes).values():
            assert not answer.refused, answer.text

    def sum_of(self, lie: Round, state: State | None = None) -> State:
        """Return sum of weight times update over the survivors of a round; Refused where it stays shut."""
        profiles = lie.sums is not None and lie.task == "fit"
        state = {} if profiles else self.state if state is None else state
        plan = {"round": lie.number, "rounds": 5, "steps": 3, **lie.plan}
        layout = layout_of({}, lie.sums) if lie.sums else Layout.of(SPEC, {})
        values = {
            "run_id": lie.run_id,
            "round": lie.number,
            "work": work_digest(plan, state),
            "most_weight": 28.0,
        }
        parameters = RoundParameters.of(layout, sites=lie.sites, **{**values, **lie.terms})
        coordinator = Coordinator(parameters, layout, Identity.unsigned("server"))
        known = {
            "run_id": lie.run_id,
            "round": lie.number,
            "job": lie.job,
            "roster": list(FOUR),
            "plan": plan,
        }

        def step(
            task: str, sites: Iterable[str], message: Any, take: Callable[[str, Any], None]
        ) -> list[str]:
            answers = {
                site: self.server.send(site, task, options={"secure_sum": message}, **known) for site in sites
            }
            return _taken(answers, lambda site, answer: take(site, answer.facts["secure_sum"]))

        sites = step("keys", lie.sites, {"terms": parameters.to_json()}, coordinator.add_advert)
        sites = step("shares", sites, {"adverts": coordinator.adverts()}, coordinator.add_shares)
        shares = {"shares": {site: coordinator.shares_for(site) for site in sites}}
        options = {"secure_sum": shares, **lie.options}
        answers = {
            site: self.server.send(site, lie.task, state, options=options, **known)
            for site in (sites if lie.survivors is None else lie.survivors)
        }
        self.answers = answers
        _taken(answers, lambda site, answer: coordinator.add_masked(site, _masked(answer)))
        survivors = coordinator.survivors()
        asked = survivors if lie.asked is None else lie.asked
        asked = step("confirm", asked, {"survivors": survivors}, coordinator.add_confirmation)
        step("reveal", asked, {"confirmations": coordinator.confirmations()}, coordinator.add_reveal)
        result = coordinator.result()
        weight = 1.0 if lie.sums else result.weight
        return {
            name: value.double() * weight for name, value in layout.unpack(result.narrow, result.wide).items()
        }


def _taken(answers: Mapping[str, Answer], take: Callable[[str, Answer], None]) -> list[str]:
    """Return who gave what was asked; Refused unless more than one did."""
    good, problems = [], {}
    for site, answer in answers.items():
        try:
            assert not answer.refused, answer.text
            take(site, answer)
            good.append(site)
        except (MaskingError, AssertionError) as error:
            problems[site] = str(error)
    if problems:
        raise Refused(json.dumps(problems))
    return good


def _masked(answer: Answer) -> Masked:
    terms = str(answer.facts["secure_sum"]["terms"])
    return Masked(terms, answer.tensors["masked:narrow"], answer.tensors["masked:wide"])


def in_another_job(lies: MaskedLies, job: str) -> None:
    """The same job once more: every site is as it was before its first round."""
    for site in FOUR:
        lies.server.restart(site)
    lies.prepare(job=job, run_id=job)
