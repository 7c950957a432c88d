# SPDX-License-Identifier: Apache-2.0
"""What the server makes of sites' seconds and sketches, whatever they say."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import NeedsSketches
from medflare.core.errors import RunError
from medflare.core.plan import RoundPlan
from medflare.core.sketch import Sketch
from medflare.core.timing import Timing
from medflare.federation.server.client_sampling import probe_losses
from medflare.federation.server.exchange import Outcome
from medflare.federation.server.run_recorder import plausible_metrics
from medflare.federation.server.sketch_exchange import Sketches, wants_sketches
from medflare.federation.server.timing import MeasuredTimings, timing_of, workload
from medflare.knowledge.minhash import MOST_HASHES, Sketcher
from medflare.knowledge.sketch_key import SECRET, SketchKey
from medflare.knowledge.sketches import comparable
from medflare.knowledge.triples import Triple
from medflare.protocol.messages import Reply

OLD, NEW = (SketchKey(bytes([i]) * SECRET, "test") for i in (1, 2))

# ---- seconds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (3.0, Timing(3.0, 1.0)),
        (9.0, Timing(4.0, 0.0)),
        (-2.0, Timing(0.0, 4.0)),
        (math.nan, Timing(4.0, 0.0)),
        (math.inf, Timing(4.0, 0.0)),
        ("3", Timing(4.0, 0.0)),
        (True, Timing(4.0, 0.0)),
        pytest.param(10**400, Timing(4.0, 0.0), id="401 digits"),
        (None, Timing(4.0, 0.0)),
    ],
)
def test_no_site_makes_itself_faster_or_slower_than_its_answer_was(message: Any, expected: Timing) -> None:
    assert timing_of({"seconds": message}, 4.0) == expected


def test_an_answer_without_seconds_is_all_computing_and_never_takes_none() -> None:
    assert timing_of({}, 4.0) == Timing(4.0, 0.0)
    assert timing_of({"seconds": 0.0}, 0.0).total > 0


@pytest.mark.parametrize("value", [pytest.param(10**400, id="401 digits"), math.inf, "much", None])
def test_what_is_no_number_a_record_can_hold_is_left_out_of_it(value: Any) -> None:
    assert plausible_metrics({"loss": value, "f1": 0.5}, "val") == {"val_f1": 0.5}
    assert math.isnan(probe_losses(Outcome(facts={"a": {"metrics": {"loss": 10**400}}}))["a"])


@pytest.mark.parametrize(("deadline", "lapsed"), [(90.0, 90.0), (math.inf, 3.0)])
def test_a_rule_hears_of_accepted_sites_and_of_all_without_an_update(deadline: float, lapsed: float) -> None:
    rule = make_rule("ddcs", {"smoothing": 1.0})
    cut_off = "given up: the quorum was out of reach"
    outcome = Outcome(
        facts={"a": {"seconds": 2.0}},
        trips={"a": 3.0, "refused": 9.0},
        absent={"b": "no reply", "refused": "not finite", "failed": "E40", "cut off": cut_off},
        silent=["b", "cut off"],
        waited={"b": 60.0},
    )
    result = MeasuredTimings(deadline).report_timings(rule, outcome)
    assert result == {"a": Timing(2.0, 1.0)}
    latencies = rule.known.latencies.report()
    assert {site: seen["compute"] for site, seen in latencies.items()} == {
        "a": 2.0,
        "b": 60.0,
        "failed": lapsed,
        "refused": lapsed,
    }
    assert latencies["a"]["transfer"] == 1.0
    assert MeasuredTimings().report_timings(make_rule("weighted_mean", {}), outcome) == result


def share_of_draws(told: Callable[[Any, Outcome], None]) -> float:
    """Of the fastest of eight sites, which gives no update after round 0; told: (rule, what else came)."""
    seconds = dict(zip("abcdefgh", (2, 10, 12, 14, 16, 18, 20, 25), strict=True))
    rule, counts = make_rule("ddcs", {"draws": 5}), Counter[str]()
    for site, own in seconds.items():
        rule.observe_latency(site, Timing(own, 0.1))
    for number in range(60):
        others = [
            s for s in rule.sample_clients(number, 7, dict.fromkeys(seconds, 100), list(seconds)) if s != "a"
        ]
        outcome = Outcome(
            facts={site: {"seconds": seconds[site]} for site in others},
            trips={site: seconds[site] + 0.1 for site in others},
        )
        if "a" in rule._sample.counts:
            told(rule, outcome)
        counts.update(rule._sample.counts)
        rule._update_staleness(others)
    return counts["a"] / counts.total()


def test_a_site_that_always_fails_is_drawn_no_more_often_than_a_silent_one() -> None:
    def fails(rule: Any, outcome: Outcome) -> None:
        outcome.absent["a"] = "E12 out of memory"
        MeasuredTimings(600.0).report_timings(rule, outcome)

    def is_silent(rule: Any, outcome: Outcome) -> None:
        outcome.absent["a"], outcome.waited["a"] = "no reply within the deadline of 600 s", 600.0
        outcome.silent.append("a")
        MeasuredTimings(600.0).report_timings(rule, outcome)

    assert share_of_draws(fails) == share_of_draws(is_silent) < 0.25


def test_the_work_of_a_round_is_counted_by_what_the_sites_set() -> None:
    whole, steps = RoundPlan(round=0, rounds=1), RoundPlan(round=0, rounds=1, steps=5)
    load = workload({"batch": 4, "local_epochs": 3}, 10, 20)
    assert (load.down, load.up, load.examples(whole, 50), load.examples(steps, 50)) == (10, 20, 150, 20)
    assert workload({"optimiser": {"batch": 4}}, 1, 1).examples(steps, 50) == 20
    assert workload({}, 1, 1).examples(steps, 50) == 5


# ---- sketches ----------------------------------------------------------------------------------------------


def sketch(key: SketchKey, *numbers: int, k: int = 256) -> Sketch:
    return Sketcher(key, k).sketch({Triple("x", "y", str(i)): 1.0 for i in numbers})


def reply(found: Sketch | None, state: str = "new", texts: int = 7, vocabulary: str = "") -> Reply:
    facts: dict[str, Any] = {"state": state} | ({"vocabulary": vocabulary} if vocabulary else {})
    if found is not None:
        data = base64.b64encode(found.to_bytes()).decode()
        facts |= {"sketch": data, "examples": texts}
    return Reply(-1, facts, {})


def rule() -> Any:
    return make_rule("ddcs", {"period": 4})


def told_by(sites: str, key: SketchKey = OLD) -> tuple[Any, Sketches]:
    """A rule and the server's sketches, after these sites sent equal ones before round 1."""
    ddcs_rule, sketches = rule(), Sketches()
    for site in sites:
        assert sketches.accept(site, reply(sketch(key, 1, 2))) is None
    sketches.update(ddcs_rule, -1, {})
    return ddcs_rule, sketches


def test_only_a_rule_that_compares_graphs_asks_and_every_period_again() -> None:
    assert wants_sketches(rule())
    assert not wants_sketches(make_rule("uniform_selection", {}))
    assert not wants_sketches(make_rule("weighted_mean", {}))
    assert [wants_sketches(rule(), exchange) for exchange in range(9)] == [e in (4, 8) for e in range(9)]


WELL = base64.b64encode(sketch(OLD, 1).to_bytes()).decode()
LONG = base64.b64encode(
    Sketch(np.zeros(MOST_HASHES + 1, np.uint32), OLD.fingerprint("set", 256)).to_bytes()
).decode()


@pytest.mark.parametrize(
    "bad",
    [
        Reply(-1, {"state": "new"}, {}),
        Reply(-1, {"state": "new", "sketch": "!!", "examples": 1}, {}),
        Reply(-1, {"state": "new", "sketch": "AAAA", "examples": 1}, {}),
        Reply(-1, {"state": "new", "sketch": None, "examples": 1}, {}),
        Reply(-1, {"state": "same"}, {}),
        Reply(-1, {}, {}),
        Reply(-1, {"state": "new", "sketch": WELL}, {}),
        Reply(-1, {"state": "new", "sketch": WELL, "examples": math.nan}, {}),
        Reply(-1, {"state": "new", "sketch": WELL, "examples": math.inf}, {}),
        Reply(-1, {"state": "new", "sketch": WELL, "examples": "7"}, {}),
        Reply(-1, {"state": "new", "sketch": WELL, "examples": 7, "triples": ["a fever"]}, {}),
        Reply(-1, {"state": "new", "sketch": LONG, "examples": 7}, {}),
        Reply(-1, {"state": "new", "sketch": WELL, "examples": 7, "vocabulary": "doid.obo"}, {}),
        Reply(-1, {"state": "new", "sketch": WELL, "examples": 7, "vocabulary": 7}, {}),
    ],
)
def test_a_reply_without_a_sketch_is_refused_with_a_reason(bad: Reply) -> None:
    sketches, ddcs_rule = Sketches(), rule()
    assert sketches.accept("a", bad)
    assert sketches.update(ddcs_rule, -1, {"a": "refused"}) == []
    assert sketches.without == {"a": "refused"}
    assert ddcs_rule.known.sketches == {}
    assert sketches.report(["a"])["sites"] == {}


def test_when_most_sites_change_their_key_the_others_are_left_out_of_the_rule_too() -> None:
    ddcs_rule, sketches = rule(), Sketches()
    assert ddcs_rule.capability(NeedsSketches)
    for site in "abc":
        assert sketches.accept(site, reply(sketch(OLD, 1, 2, 3))) is None
    assert sketches.update(ddcs_rule, -1, {}) == ["a", "b", "c"]
    for site in "bc":
        sketches.accept(site, reply(sketch(NEW, 1, 2, 4)))
    assert sketches.update(ddcs_rule, 4, {}) == ["b", "c"]
    assert set(ddcs_rule.known.sketches) == set(sketches.held) == {"b", "c"}
    assert "cannot be compared with that of 'b'" in sketches.without["a"]
    assert [set(item) for item in sketches.renewed] == [{"exchange", "site", "texts"}] * 2
    assert sketches.report("abc")["distances"]["matrix"] == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_a_site_that_mends_its_key_is_no_longer_named() -> None:
    ddcs_rule, sketches = rule(), Sketches()
    for site, key in (("a", OLD), ("b", OLD), ("c", NEW)):
        sketches.accept(site, reply(sketch(key, 1, 2)))
    sketches.update(ddcs_rule, -1, {})
    assert set(sketches.without) == {"c"}
    sketches.accept("c", reply(sketch(OLD, 1, 2)))
    assert sketches.update(ddcs_rule, 4, {}) == ["c"]
    assert sketches.without == {}


def test_who_has_another_vocabulary_is_named_and_stays_in() -> None:
    ddcs_rule, sketches = rule(), Sketches()
    for site, vocabulary in (("a", "0" * 16), ("b", "0" * 16), ("c", "f" * 16), ("d", "")):
        assert sketches.accept(site, reply(sketch(OLD, 1, 2), vocabulary=vocabulary)) is None
    assert sketches.update(ddcs_rule, -1, {}) == ["a", "b", "c", "d"]
    assert sketches.report("abcd")["other_vocabulary"] == ["c"]
    assert (set(ddcs_rule.known.sketches), sketches.without) == (set("abcd"), {})
    sketches.accept("c", reply(sketch(OLD, 1, 3), vocabulary="0" * 16))
    sketches.update(ddcs_rule, 4, {})
    assert sketches.report("abcd")["other_vocabulary"] == []


def test_a_site_that_is_absent_later_keeps_the_sketch_it_sent() -> None:
    ddcs_rule, told = told_by("ab")
    told.accept("a", reply(None, "same"))
    told.update(ddcs_rule, 4, {"b": "disconnected"})
    assert (set(told.held), told.without, told.renewed) == ({"a", "b"}, {}, [])


@pytest.mark.parametrize(
    ("message", "absent"), [("none", {}), ("", {"a": "E22 policy.knowledge_sketch: deny"})]
)
def test_a_sketch_that_a_site_takes_back_is_used_no_more(message: str, absent: dict[str, str]) -> None:
    ddcs_rule, told = told_by("abc")
    if message:
        assert told.accept("a", reply(None, message)) is None
    assert told.update(ddcs_rule, 4, absent) == []
    assert set(ddcs_rule.known.sketches) == set(told.held) == {"b", "c"}
    assert set(told.without) == {"a"}
    assert set(told.report("abc")["sites"]) == {"b", "c"}
    assert told.accept("a", reply(sketch(OLD, 1))) is None
    assert told.update(ddcs_rule, 8, {}) == ["a"]
    assert told.without == {}


def test_two_unlike_keys_do_not_end_a_run_in_which_others_have_no_sketch() -> None:
    ddcs_rule, sketches = rule(), Sketches()
    sketches.accept("a", reply(sketch(OLD, 1)))
    sketches.accept("b", reply(sketch(NEW, 1)))
    sketches.accept("c", reply(None, "none"))
    assert sketches.update(ddcs_rule, -1, {"d": "disconnected"}) == []
    assert (ddcs_rule.known.sketches, sketches.held) == ({}, {})
    assert set(sketches.without) == {"a", "b", "c", "d"}
    assert "distances" not in sketches.report("abcd")
    sketches.accept("a", reply(sketch(NEW, 1)))
    sketches.accept("b", reply(sketch(NEW, 1)))
    assert sketches.update(ddcs_rule, 4, {}) == ["a", "b"]


def test_one_sketch_alone_is_no_quarrel_and_two_without_a_common_key_are() -> None:
    sketches = Sketches()
    sketches.accept("a", reply(sketch(OLD, 1)))
    assert sketches.update(rule(), -1, {"b": "none"}) == ["a"]
    sketches.accept("b", reply(sketch(NEW, 1)))
    with pytest.raises(RunError, match="no two sketches of knowledge graphs can be compared"):
        sketches.update(rule(), -1, {})


def test_a_run_under_way_leaves_out_the_newcomer_with_another_key() -> None:
    sketches = Sketches()
    sketches.accept("a", reply(sketch(OLD, 1)))
    sketches.update(rule(), -1, {"b": "none"})
    sketches.accept("b", reply(sketch(NEW, 1)))
    assert sketches.update(rule(), 4, {}) == []
    assert set(sketches.held) == {"a"}
    assert "cannot be compared" in sketches.without["b"]


def test_sketches_of_another_length_or_kind_are_not_compared() -> None:
    kept, strange = comparable({"a": sketch(OLD, 1), "b": sketch(OLD, 1), "c": sketch(OLD, 1, k=128)})
    assert set(kept) == {"a", "b"}
    assert "k = 128" in strange["c"]
    assert comparable({}) == ({}, {})
