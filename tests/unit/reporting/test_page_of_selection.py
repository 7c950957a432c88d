# SPDX-License-Identifier: Apache-2.0
"""What the page says of a run whose rule drew who trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_reader import Reader, read, read_html, section_html

from medflare.core.run_record import RoundRecord, RunRecord, SiteRecord
from medflare.reporting.page import write_page
from medflare.reporting.sections.series import LISTED

SITES = ("site-1", "site-2", "site-3")
SEEN = {"compute": 30.0, "transfer": 4.0, "compute_q50": 30.0, "compute_q90": 40.0, "transfer_q90": 5.0}
SKETCHES = {
    "sites": {
        "site-1": {"texts": 1200, "empty": False, "bytes": 4122},
        "site-2": {"texts": 9, "empty": True, "bytes": 4122},
    },
    "without": {"site-3": "E22 PolicyError: policy.knowledge_sketch: no sketch may leave"},
    "renewed": [{"exchange": 4, "site": "site-1", "texts": 1500, "moved": 0.25}],
    "distances": {"order": list(SITES), "matrix": [[0, 0.4, 0.7], [0.4, 0, 0.55], [0.7, 0.55, 0]]},
}


def drawn(number: int, simulated: bool = True) -> RoundRecord:
    gone = ["site-2"] if number == 1 else []
    rule = {
        "drawn": {"site-1": 3, "site-2": 1},
        "importance": {"site-1": 0.4, "site-2": 1.7},
        "vanished": gone,
        "odds": {"site-1": 0.7, "site-2": 0.2, "site-3": 0.1},
        "ages": {"site-1": 0, "site-2": len(gone), "site-3": number + 1},
        "latencies": {"site-1": SEEN, "site-2": SEEN},
        "solution": {"expected_slowest": 34.0, "divergence": 0.31, "variance": 1.6},
    }
    clock = 100.0 * (number + 1) if simulated else None
    return RoundRecord(round=number, seconds=2.0, simulated_seconds=clock, rule=rule, accepted={"site-1": 10})


def record(rounds: int = 3, simulated: bool = True, **other: Any) -> RunRecord:
    sites = {site: SiteRecord(backbone="toy", fingerprint="f0") for site in SITES}
    entries = [drawn(number, simulated) for number in range(rounds)]
    return RunRecord(
        job="ddcs",
        method="toy",
        run_id="r",
        started="2026-01-01T00:00:00Z",
        sites=sites,
        rounds=entries,
        best_round=None,
        **other,
    )


def selection(record: RunRecord) -> str:
    return section_html("selection", record)


def pictures(reader: Reader) -> int:
    return sum(tag == "svg" for tag, _ in reader.found)


def test_a_run_without_draws_has_no_such_section(tmp_path: Path) -> None:
    plain = record(1)
    plain.rounds[0].rule = {"weights": {"site-1": 1.0}}
    plain.write(tmp_path / "run.json")
    assert "Selection" not in read(write_page(tmp_path / "run.json")).text
    assert selection(plain) == ""


def test_draws_odds_waits_and_seconds_are_told_by_site(tmp_path: Path) -> None:
    record().write(tmp_path / "run.json")
    page = read(write_page(tmp_path / "run.json"))
    assert "Selection" in page.text
    shown = read_html(selection(record()))
    for text in ("site-1 ×3, site-2", "70.0 %", "Rounds since a site trained", "9 of 10 rounds within"):
        assert text in shown.text
    assert pictures(shown) == 4


def test_who_vanished_is_named_and_explained() -> None:
    assert "gave no answer" in selection(record(2))
    assert "gave no answer" not in selection(record(1))


def test_the_simulated_clock_stands_beside_the_real_one() -> None:
    assert "5 min 0 s" in read_html(selection(record(3))).text
    assert "minutes, simulated and real" in selection(record(3))
    real = read_html(selection(record(3, simulated=False)))
    assert pictures(real) == 3


def test_sketches_say_who_sent_one_who_did_not_and_the_distances() -> None:
    shown = read_html(selection(record(preparation={"sketches": SKETCHES})))
    for text in ("1,200", "4,122 B", "empty", "policy.knowledge_sketch", "Sent again", "55"):
        assert text in shown.text
    nothing = {"sites": {}, "without": dict.fromkeys(SITES, "no block"), "renewed": []}
    assert "Distances" not in selection(record(preparation={"sketches": nothing}))


EXACT = {
    "sites": {
        "site-1": {"elements": 1200, "texts": 9, "empty": False},
        "site-2": {"elements": 0, "texts": 4, "empty": True},
    },
    "without": {"site-3": "E22 PolicyError: policy.knowledge_exact: <no>"},
    "pairs": [{"sites": ["site-1", "site-2"], "shared": 345}],
    "not_compared": [{"sites": ["site-1", "site-3"], "why": "site-3: no reply within the deadline"}],
    "waves": 3,
    "bytes": {"from_sites": 98765, "to_sites": 98765},
    "seconds": 2.0,
    "smallest_eigenvalue": 0.31,
    "distances": {"order": list(SITES), "matrix": [[0, 0.41, 0.7], [0.41, 0, 0.55], [0.7, 0.55, 0]]},
}


@pytest.mark.parametrize("rounds", [0, 2])
def test_exact_sizes_say_who_told_them_which_pairs_are_missing_and_the_distances(rounds: int) -> None:
    shown = read_html(selection(record(rounds, preparation={"exact": EXACT})))
    for text in ("1,200", "345", "98,765 bytes", "site-1 and site-3", "no reply within", "<no>", "41"):
        assert text in shown.text
    nothing = {**EXACT, "sites": {}, "pairs": [], "not_compared": []}
    del nothing["distances"]
    assert "Distances" not in selection(record(preparation={"exact": nothing}))


def test_another_vocabulary_is_a_warning_in_either_way() -> None:
    for name, told in (("sketches", SKETCHES), ("exact", EXACT)):
        assert "another vocabulary" not in selection(record(preparation={name: told}))
        shown = read_html(selection(record(preparation={name: {**told, "other_vocabulary": ["site-2"]}})))
        assert "Warning: site-2 made the graph with another vocabulary" in shown.text


@pytest.mark.parametrize(
    ("least", "message", "warned"),
    [(0.31, "not below 0", False), (-1e-9, "not below 0", False), (-0.4, "0.4", True)],
)
def test_similarities_that_no_graphs_have_are_a_warning(least: float, message: str, warned: bool) -> None:
    shown = read_html(selection(record(preparation={"exact": {**EXACT, "smallest_eigenvalue": least}}))).text
    assert message in shown
    assert ("Warning" in shown) is ("a site told false sizes" in shown) is warned


def test_a_long_run_stays_small() -> None:
    section = selection(record(500))
    assert f"The last {LISTED} of 500 rounds." in section
    assert len(section) < 400_000


def test_names_are_escaped() -> None:
    bad = {**SKETCHES, "without": {"<b>site</b>": "<script>"}}
    assert "<script>" not in selection(record(preparation={"sketches": bad}))
