# SPDX-License-Identifier: Apache-2.0
"""The page of temporal rounds: visits, weights of visits, what was agreed on first, secure sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_reader import Reader, macro_html, read, read_html, section_html

from medflare.core.run_record import RoundRecord, RunRecord, SiteRecord
from medflare.reporting.charts.bars import share_chart
from medflare.reporting.charts.drawing import Drawing
from medflare.reporting.charts.lines import contiguous, line_chart
from medflare.reporting.page import write_page

EXAMPLES = {1: {"north": 40, "south": 20}, 2: {"north": 30, "south": 0}}
ALPHA, BETA = [0.25, 0.75], [0.1875, 0.0625, 0.75]
TERMS = {
    "sites": ["north", "south"],
    "threshold": 2,
    "narrow": 4096,
    "wide": 12,
    "bits": 32,
    "weighing": "examples",
}


def visit(number: int, t: int, **other: Any) -> RoundRecord:
    """One exchange: at visit 2 south has nothing."""
    there = {site: {"train_loss": 2.0 - 0.1 * number} for site, count in EXAMPLES[t].items() if count}
    return RoundRecord(
        round=number,
        seconds=1.0,
        accepted=EXAMPLES[t],
        metrics=there,
        mean={"train_loss": 2.0 - 0.1 * number},
        checks={"alpha": ALPHA[t - 1], "update_norm": 0.125},
        rule={"weights": {site: 1 / len(there) for site in there}},
        **other,
    )


def record(rounds: int = 3, visits: bool = True, **other: Any) -> RunRecord:
    """A run of rounds of two visits, or of one exchange each."""
    made = [
        RoundRecord(
            round=number,
            seconds=2.0,
            accepted={"north": 70, "south": 20},
            metrics={"north": {"val_loss": 1.5 - 0.2 * number}, "south": {"val_loss": 1.7 - 0.2 * number}},
            mean={"val_loss": 1.6 - 0.2 * number},
            rule={"alpha": ALPHA, "beta": BETA, "weights": {"north": 1.0}, "slopes": [0.1, 0.2]},
            exchanges=[visit(2 * number, 1), visit(2 * number + 1, 2)] if visits else [],
        )
        for number in range(rounds)
    ]
    sites = {name: SiteRecord(backbone="b", fingerprint="f") for name in ("north", "south")}
    return RunRecord(
        job="fedtar",
        method="fedtar",
        task="visits",
        run_id="r",
        started="now",
        rounds=made,
        sites=sites,
        best_metric="val_loss",
        **other,
    )


def shapes(drawing: Drawing) -> list[str]:
    return [type(item).__name__.lower() for item in drawing.shapes]


def pictures(reader: Reader) -> list[str]:
    return [attributes["aria-label"] for tag, attributes in reader.found if tag == "svg"]


def test_a_run_of_single_exchanges_has_no_section_of_visits(tmp_path: Path) -> None:
    plain = record(visits=False)
    assert {section_html(key, plain) for key in ("visits", "preparation", "protocol")} == {""}
    plain.write(tmp_path / "run.json")
    page = read(write_page(tmp_path))
    assert not {"visits", "preparation", "protocol"} & {
        a.get("id") for tag, a in page.found if tag == "section"
    }
    assert "Weights of the sites" in page.text


def test_the_page_of_visits_has_its_own_weights(tmp_path: Path) -> None:
    record().write(tmp_path / "run.json")
    page = read(write_page(tmp_path))
    assert "visits" in {a.get("id") for tag, a in page.found if tag == "section"}
    assert "Weights of the sites" not in page.text
    assert "w = 0.5" in page.text


def test_a_site_without_a_visit_is_told_from_one_that_was_missing() -> None:
    run_record = record()
    run_record.rounds[1].exchanges[0].absent = {"south": "no reply within 60 s"}
    del run_record.rounds[1].exchanges[0].accepted["south"]
    reader = read_html(section_html("visits", run_record))
    assert "no examples" in reader.text
    assert "Round 2, visit 1, south: no reply within 60 s" in reader.text
    assert "Sites missing from a visit: 1" in reader.text


def test_curves_are_over_exchanges_and_weights_over_rounds() -> None:
    labels = pictures(read_html(section_html("visits", record())))
    assert len(labels) == 4
    assert labels[0].startswith("language loss over exchanges by north, south, mean; from 1.1 to 1.7")
    assert labels[1].startswith("loss over exchanges by visit 1, visit 2; from 1.5 to 2")
    assert labels[2] == "α over rounds by visit 1, visit 2; from 0.25 to 0.75."
    assert labels[3].endswith("in the last one before the round 0.188, visit 1 0.0625, visit 2 0.75.")


def test_a_rule_without_alpha_has_no_weights_of_visits() -> None:
    run_record = record()
    for entry in run_record.rounds:
        entry.rule = {}
        for one in entry.exchanges:
            one.checks = {"update_norm": 0.5}
    reader = read_html(section_html("visits", run_record))
    assert len(pictures(reader)) == 2
    assert "α" not in reader.text


def test_a_long_run_stays_small() -> None:
    assert len(section_html("visits", record(rounds=1000))) < 600_000


def test_under_masks_it_says_who_trained_and_not_on_how_many() -> None:
    run_record = record()
    for entry in run_record.rounds:
        for one in entry.exchanges:
            one.protection, one.accepted = {"terms": TERMS, "weight": 60.0}, {"north": 7777, "south": 20}
    reader = read_html(section_html("visits", run_record))
    assert "trained" in reader.text
    assert "no examples" in reader.text
    assert "how many examples of a visit a site has is not known here" in reader.text
    assert "7777" not in reader.text.replace(",", "")


@pytest.mark.parametrize(
    ("informative", "fact"),
    [(True, "yes"), (False, "Nothing in the profiles differs between patients")],
)
def test_the_mixture_and_whether_it_tells_patients_apart(informative: bool, fact: str) -> None:
    mixture = {
        "iterations": 3,
        "likelihoods": [-1.0, -0.25, 0.5],
        "components": 2,
        "weights": [0.75, 0.0, 0.25],
        "merged": 1,
        "empty": 0,
        "explained": [0.62, 0.0],
        "informative": informative,
    }
    reader = read_html(section_html("preparation", record(preparation={"mixture": mixture})))
    for words in (
        "2 of 3",
        "75 %",
        "62 %, 0 %",
        "merged, of too few patients",
        "−1 at first, 0.5 at last",
        fact,
    ):
        assert words in reader.text
    assert pictures(reader) == ["log-likelihood over iterations by all sites; from −1 to 0.5."]


def test_secure_sums_name_phases_and_who_was_lost() -> None:
    run_record = record()
    for entry in run_record.rounds:
        for one in entry.exchanges:
            one.protection = {
                "terms": TERMS,
                "sites": ["north", "south"],
                "weight": 60.0,
                "keys_seconds": 0.25,
                "open_seconds": 0.5,
            }
    run_record.rounds[0].exchanges[1].protection |= {"lost": {"south": "'reveal' took too long"}}
    run_record.rounds[2].exchanges[0].protection |= {"failed": "1 site answered 'confirm', 2 are needed"}
    reader = read_html(section_html("protocol", run_record))
    facts = ("round 1, visit 2", "south: 'reveal' took too long", "1 site answered 'confirm'", "4.5 s")
    for words in (*facts, "4,096 of 32 bits, 13 of 64", "6 of 6 sums"):
        assert words in reader.text


def test_rounds_of_one_exchange_have_secure_sums_too() -> None:
    run_record = record(visits=False)
    for entry in run_record.rounds:
        entry.protection = {"weight": 2.0, "groups": 1, "keys": {}}
    assert "only the sites read the sum" in read_html(section_html("protocol", run_record)).text


def test_a_line_bridges_as_far_as_its_step() -> None:
    points = [(3.0, 1.0), (6.0, 2.0), (12.0, 3.0)]
    assert [len(part) for part in contiguous(points, 3)] == [2, 1]
    chart = line_chart({"mean": points}, {"mean": "all"}, "loss", "exchange", 3)
    assert chart is not None
    assert shapes(chart).count("curve") == 2


def test_shares_stand_on_each_other_and_a_long_run_has_few_bars() -> None:
    chart = share_chart([1, 2], {"a": [0.25, 0.5], "b": [0.75, 0.5]}, {"a": "s0", "b": "s1"}, "β")
    assert chart is not None
    assert shapes(chart).count("bar") == 4
    assert "a, round 1: 0.25" in macro_html("chart.html", "chart", chart)
    many = share_chart(list(range(1, 1001)), {"a": [1.0] * 1000}, {"a": "s0"}, "β")
    assert many is not None
    assert shapes(many).count("bar") <= 60
    assert share_chart([], {}, {}, "β") is None
