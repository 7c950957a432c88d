# SPDX-License-Identifier: Apache-2.0
"""Validates every update before a rule sees it; a rejected one is named with its reason, the round goes on.

Stock FLARE aggregates NaN silently, dies on an unknown key and ignores a wrong shape; here each costs the
site its round and nothing else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import (
    AcceptsZeroWeight,
    CountsAbortedRounds,
    ReadsMetrics,
    Score,
    ScoresCandidates,
    UsesAuxiliarySums,
    factor_clip,
)
from medflare.aggregation.staleness import scaled
from medflare.core.errors import UpdateError
from medflare.core.run_record import ALL_SITES
from medflare.core.tensor_names import SUM_PREFIX, split_by_prefix
from medflare.core.tensors import SharedSpec, State, check_state, squares
from medflare.core.update import Update
from medflare.federation.engine import FLComponent
from medflare.federation.server.update_limits import UpdateLimits
from medflare.federation.server.update_spool import UpdateSpool
from medflare.protections.base import ServerProtection
from medflare.protocol.messages import Reply
from medflare.protocol.nested_settings import unmarked
from medflare.wire.compression import CODECS, Uplink, decompress


class ValidatingAggregator(FLComponent):
    """Validates updates and passes the good ones to the rule in order of site name.

    The fixed order makes a run repeatable to the last bit. An update waits until every site before it has
    answered or was given up; what waits lies in the spool, so that memory does not grow with the number of
    sites. Where the rule scores updates itself, all wait until the exchange is over: scoring takes time.

    Attributes:
        limits: what one site's update may be.
        uplink: how floating tensors of updates travel.
        accepts_zero_weight: whether a site may answer with an update of no examples. A rule that knows no
            such updates never sees one, and an exchange of nothing else leaves its state and the run's as
            they are (TAR-15).
        spool: where accepted updates wait, and a resumed run finds them.
    """

    def __init__(self, rule: str = "weighted_mean", rule_settings: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.rule, self.rule_name = make_rule(rule, unmarked(rule_settings or {})), rule
        self.spec: SharedSpec = {}
        self.sums_spec: SharedSpec = {}
        self.declared: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        self.limits = self.limits_of(100.0)
        self.uplink: Uplink = "bfloat16"
        self.deferred = False
        self.accepts_zero_weight = self.rule.capability(AcceptsZeroWeight) is not None
        self.protection = ServerProtection()
        self.spool = UpdateSpool()

    def limits_of(self, max_ratio: float | None) -> UpdateLimits:
        """Return the limits of this rule's updates; max_ratio: of norms to the median, None for no limit."""
        summing = self.rule.capability(UsesAuxiliarySums)
        return UpdateLimits(max_ratio, summing.assigned_sums if summing else ())

    def bind(self, score: Score) -> None:
        """Give a rule that scores candidates the function that does it."""
        scored = self.rule.capability(ScoresCandidates)
        assert scored is not None, "only rules that score candidates are given a score"
        scored.set_score(score)
        self.deferred = True

    def expect(
        self,
        spec: SharedSpec,
        sums: SharedSpec,
        declared: Mapping[str, int],
        weights: Mapping[str, int] | None = None,
    ) -> None:
        """Take what was declared before round 1: tensors, sums, and training examples of each site.

        Args:
            weights: site -> the most examples with which it counts; what it declared without.
        """
        self.spec, self.sums_spec, self.declared = spec, sums, dict(declared)
        self.weights = dict(weights or declared)

    def begin(self, round_number: int, state: State, sites: Sequence[str]) -> None:
        """Start a round from the server's state (fp32)."""
        self.round, self.state, self.order = round_number, state, sorted(sites)
        self.accepted: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self._done: set[str] = set()
        self._waiting: dict[str, float] = {}
        self._fresh: dict[str, Update] = {}
        self._next, self._empty, self._taken = 0, 0, 0
        self._totals: State = {}
        self._unusual: set[str] = set()
        self._over = False
        self._rule_before = copy.deepcopy(self.rule.state_dict())
        self.limits.begin(state)
        self.rule.begin(state)

    def accept(
        self,
        site: str,
        round_number: int,
        facts: Mapping[str, Any],
        tensors: State,
        weight: float = 1.0,
        trip: float = 0.0,
        late: bool = False,
        spooled: bool = False,
    ) -> str | None:
        """Take an update as it travelled; return the reason if the checks or, at once, the rule reject it.

        Args:
            weight: the factor of its change; 1 but of an update that was made for an earlier state.
            trip: as in `Reply`.
            late: whether it was made for an earlier state, so that no resumed run may take it for this one's.
            spooled: whether it comes from the spool, where an earlier process of the run left it.
        """
        if self.protection.sealed:
            return self._accept_sealed(site, round_number, facts, tensors)
        try:
            values = decompress(tensors)
            reason = self.problem(site, round_number, facts, values)
            if reason is None:
                update = self._update(site, values, facts, weight)
                reason = self.limits.problem(site, update, self.weights[site])
            if reason is None:
                if not spooled:
                    self.spool.keep(site, Reply(round_number, dict(facts), tensors, trip=trip), not late)
                self.accepted[site] = update.examples
                self._waiting[site], self._fresh[site] = weight, update
                if self.limits.is_unusual(site):
                    self._unusual.add(site)
        except UpdateError as error:
            reason = f"update: {error}"
        refused = self.mark_done(site)
        self._fresh.clear()  # whoever has to wait is read again when it is its turn
        return reason or refused.get(site)

    def _update(self, site: str, tensors: State, facts: Mapping[str, Any], weight: float) -> Update:
        """Return the update as it counts. tensors: decompressed."""
        update = Update.from_message(tensors, facts)
        update.delta = scaled(update.delta, weight)
        update.examples = min(update.examples, self.weights[site])
        return update

    def _accept_sealed(
        self, site: str, round_number: int, facts: Mapping[str, Any], tensors: State
    ) -> str | None:
        """Pass on an update that nobody can look into; its site has checked names, shapes and values."""
        reason = self._misplaced(site, round_number)
        if reason is None and "examples" in facts:
            reason = self._overweight(site, facts)
        if reason is None:
            try:
                self.protection.add_sealed(site, facts, tensors)
                self.accepted[site] = self.weights[site]
            except UpdateError as error:
                reason = f"sealed update: {error}"
        self._done.add(site)
        return reason

    def add_sum(self, update: Update) -> None:
        """Take what all sealed updates of the round came to: to the rule, the update of one large site.

        Raises:
            UpdateError: the sum holds other tensors, values that are not finite, or is out of all proportion.
        """
        check_state(update.delta, self.spec, "opened sum")
        check_state(update.sums, self.sums_spec, "opened sum")
        if problem := self.limits.problem(ALL_SITES, update, sum(self.weights.values())):
            raise UpdateError(f"opened sum: {problem}.")
        reading = self.rule.capability(ReadsMetrics)
        weighed = reading.metrics_of_sum() if reading else {}
        total = replace(update, examples=min(1, update.examples), metrics=weighed)
        if self._is_empty(total):
            return
        self.rule.add(ALL_SITES, total)
        self._taken += 1
        self._totals = dict(update.sums)

    def _is_empty(self, update: Update) -> bool:
        """Return whether an update is of no examples and the rule knows no such: it need not see it."""
        empty = not update.examples and self.rule.capability(AcceptsZeroWeight) is None
        self._empty += empty
        return empty

    @property
    def no_contributions(self) -> bool:
        """True if sites answered in this exchange, and none of them had anything for the rule."""
        return bool(self._empty) and not self._taken

    def _misplaced(self, site: str, round_number: int) -> str | None:
        """Return why nothing is expected of this site in this round, or None."""
        if site not in self.order:
            return "update of a site that was not asked"
        if site in self._done:
            return "second update in one round"
        if round_number != self.round:
            return f"update of round {round_number + 1}, expected round {self.round + 1}"
        return None

    def problem(
        self, site: str, round_number: int, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> str | None:
        """Return why an update cannot be used, or None."""
        misplaced = self._misplaced(site, round_number)
        if misplaced is not None:
            return misplaced
        overweight = self._overweight(site, facts)
        if overweight is not None:
            return overweight
        delta, sums = split_by_prefix(tensors, SUM_PREFIX)
        wrong = [name for name in sorted(set(delta) & set(self.spec)) if not self._is_right_kind(name, delta)]
        if wrong:
            return f"'{wrong[0]}' has dtype {delta[wrong[0]].dtype}, expected {self.spec[wrong[0]][1]}"
        try:
            check_state(delta, self.spec, "update")
            check_state(sums, self.sums_spec, "sums")
        except UpdateError as error:
            return str(error)
        return None

    def _overweight(self, site: str, facts: Mapping[str, Any]) -> str | None:
        """Return why a site cannot weigh what it says, or None."""
        examples = facts.get("examples")
        least, most = 0 if self.accepts_zero_weight else 1, self.declared.get(site, 0)
        if isinstance(examples, bool) or not isinstance(examples, int) or not least <= examples <= most:
            return f"weight {examples!r}, expected {least} to the {most} training examples the site declared"
        clip, factor = factor_clip(self.rule), facts.get("factor", 1.0)
        if not _within(factor, clip):
            expected = (
                f"between e^-{clip:g} and e^{clip:g}" if clip else "1: this rule takes no site's own factor"
            )
            return f"factor {factor!r}, expected {expected}"
        return None

    def _is_right_kind(self, name: str, delta: Mapping[str, Tensor]) -> bool:
        """Return whether a tensor has its declared dtype, or the one in which the uplink lets it travel."""
        declared = self.spec[name][1]
        if not declared.is_floating_point:
            return delta[name].dtype == declared
        # What was quantised comes back in fp32; what is too small to quantise travels as the plain dtype.
        return delta[name].dtype in (declared, torch.float32, CODECS[self.uplink].plain)

    def mark_done(self, site: str) -> Mapping[str, str]:
        """Note that nothing more is expected of a site in this round; deliver what no longer has to wait.

        Returns every site whose update the rule refused in this round, with the reason: an update that had to
        wait was called accepted before the rule saw it.
        """
        self._done.add(site)
        if not self.deferred and not self.protection.sealed:
            self._deliver_in_order()
        return self.refused

    def flush(self) -> Mapping[str, str]:
        """Deliver whatever waits, as no more updates come; return the refused with reasons."""
        self._done |= set(self.order)
        self._over = True
        if not self.protection.sealed:
            self._deliver_in_order()
        return self.refused

    def _deliver_in_order(self) -> None:
        """Give the rule every update before which, in order of site name, none can come any more.

        An update of unusual norm, and every one behind it, waits until all of the round are there.
        """
        while self._next < len(self.order) and self.order[self._next] in self._done:
            site = self.order[self._next]
            if site in self._unusual and not self._over:
                if self._done < set(self.order):
                    return
                self._over = True
            if site in self._waiting:
                self._add(site)
            self._next += 1

    def _add(self, site: str) -> None:
        """Give the rule one site's update, or note why it is refused."""
        weight, update = self._waiting.pop(site), self._fresh.pop(site, None)
        reason = self.limits.refused(site) if site in self._unusual else None
        if reason is not None:
            del self.accepted[site]
            self.refused[site] = reason
            return
        try:
            if update is None:
                reply = self.spool.take(site)
                update = self._update(site, decompress(reply.tensors), reply.facts, weight)
            if self._is_empty(update):
                return
            self.rule.add(site, update)
        except UpdateError as error:
            del self.accepted[site]
            self.refused[site] = f"refused by the aggregation rule: {error}"
            return
        except Exception as error:  # one site's update must not end the exchange of all
            del self.accepted[site]
            self.refused[site] = f"the aggregation rule failed on it ({type(error).__name__}: {error})"
            return
        self._taken += 1
        self.limits.accept(site)
        for name, value in update.sums.items():
            self._totals[name] = self._totals[name] + value if name in self._totals else value.clone()

    def finish(self) -> tuple[State, State, dict[str, float]]:
        """Return (new state, totals of the sums, norms of the global update and the rule's own checks).

        Raises UpdateError if the rule made something that is not finite, or a tensor that was neither
        declared nor is among what the rule may add; the old state stays good then.
        """
        self.flush()
        if self.no_contributions:
            self._abort_rule()
            new = dict(self.state)
        else:
            new = self.rule.finish()
        added = {name: value for name, value in new.items() if name.startswith(self.rule.facts.extra_tensors)}
        check_state(new, {**self.spec, **_spec_of(added)}, "aggregation")
        summing = self.rule.capability(UsesAuxiliarySums)
        totals = self._totals
        if summing is not None:
            totals = summing.update_server_state(totals, len(self.declared))
        change = sum(squares(new[name], self.state[name]) for name in self.spec)
        total = sum(squares(value) for value in new.values() if value.is_floating_point())
        norms = {"update_norm": math.sqrt(change), "state_norm": math.sqrt(total)}
        return new, totals, norms | self._rule_report().get("checks", {})

    def restore_rule(self) -> None:
        """Put the rule's own state back to what it was before the round, whose result cannot be used."""
        self.rule.load_state_dict(self._rule_before)

    def abort_round(self) -> None:
        """End a lost round in place of `finish`, or of `begin` and `finish`: the state stays as it is."""
        self._empty = self._taken = 0
        self._abort_rule()

    def _abort_rule(self) -> None:
        if counting := self.rule.capability(CountsAbortedRounds):
            counting.abort_round()

    def report(self) -> dict[str, Any]:
        """Return the rule's report, without entries of the one large site that a sealed sum is to it."""
        return {key: value for key, value in self._rule_report().items() if not _of_all_sites(value)}

    def _rule_report(self) -> dict[str, Any]:
        """Return the rule's report of this exchange; empty for one that the rule did not see."""
        return {} if self.no_contributions else self.rule.report()


def _of_all_sites(value: Any) -> bool:
    return isinstance(value, Mapping) and ALL_SITES in value


def _spec_of(state: Mapping[str, Tensor]) -> SharedSpec:
    """Return names, shapes and dtypes of tensors as they are."""
    return {name: (tuple(value.shape), value.dtype) for name, value in state.items()}


def _within(factor: Any, clip: float) -> bool:
    """Return whether a factor is a number within [e^-clip, e^clip], up to rounding."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        return False
    return abs(math.log(factor)) <= clip + 1e-9
