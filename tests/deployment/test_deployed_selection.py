# SPDX-License-Identifier: Apache-2.0
"""DDCS over mTLS: sketches and exact sizes under a key that only sites have; draws as in the simulator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import deployed_jobs
import numpy as np
import pytest
from deployed import ADMIN, SERVER, SITES, Federation, Finished
from deployed_jobs import Simulated
from deployed_records import assert_same_adapter, differences, facts, found_in
from typer.testing import CliRunner

from medflare.cli.main import app
from medflare.core.sketch import Sketch
from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site
from medflare.knowledge.cohort_texts import knowledge_texts
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.private_intersection import keyed_elements
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import Triple

pytestmark = pytest.mark.long
"""Three more jobs, four processor minutes; CI deploys fedmrg, and draws by sketches in the simulator."""
HOSPITALS = (*SITES, "site-4")
DENIES = "site-3"
"""Its policy lets no sketch out, and says nothing of exact sizes."""
SKETCHED = tuple(site for site in HOSPITALS if site != DENIES)
LOCAL = ("site.yaml", "vocabulary.obo", "hospitals.key")


@pytest.fixture(scope="module")
def hospitals(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four hospitals with questions, and kits that read them instead of the others' studies and notes."""
    folder = tmp_path_factory.mktemp("questions")
    deployed_jobs.write_questions(folder, HOSPITALS, DENIES)
    homes = {site: federation.kits / site / "local" for site in HOSPITALS}
    before = {site: (home / "site.yaml").read_bytes() for site, home in homes.items()}
    for site, home in homes.items():
        deployed_jobs.hand_over_questions(folder, home, site)
    yield folder
    for site, home in homes.items():
        for name in LOCAL:
            (home / name).unlink()
        (home / "site.yaml").write_bytes(before[site])


@dataclass(frozen=True)
class Runs:
    """One job, in the deployed federation and in the simulator; and deployed once more with exact sizes."""

    deployed: Finished
    simulated: Simulated
    exact: Finished


@pytest.fixture(scope="module")
def runs(federation: Federation, hospitals: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("ddcs")
    with federation.joined("site-4"):
        job_id = federation.submit(deployed_jobs.tiny_job(folder, "ddcs_qa", clients=len(HOSPITALS)))
        site_file = hospitals / "site.yaml"
        simulated = deployed_jobs.simulated("ddcs_qa", folder / "simulated", HOSPITALS, site_file)
        deployed = federation.finished(job_id, folder / "out")
        changes = {"rule_settings__distances": "exact", "num_rounds": 1, "worker": "process"}
        job = deployed_jobs.tiny_job(folder / "exact", "ddcs_qa", clients=len(HOSPITALS), **changes)
        return Runs(deployed, simulated, federation.complete(job, folder / "out-exact"))


@dataclass(frozen=True)
class Known:
    """What a hospital knows: its graph and of how many texts it is, its secret, and what is made of both."""

    texts: int
    graph: dict[Triple, float]
    secret: str
    sketch: Sketch
    elements: list[str]


@pytest.fixture(scope="module")
def known(federation: Federation, hospitals: Path) -> dict[str, Known]:
    """Made at hand from each kit's own site.yaml."""

    def of(site: str) -> Known:
        settings = load_site(federation.kits / site / "local" / "site.yaml", site)
        config = settings.knowledge
        assert config is not None
        texts = knowledge_texts(load_cohort(settings))
        graph = site_graph(config, texts)
        key = SketchKey.read(config.key, config.context)
        sketch = Sketcher(key, config.hashes, config.kind).sketch(graph)
        return Known(len(texts), graph, config.key.read_text().strip(), sketch, keyed_elements(graph, key))

    return {site: of(site) for site in HOSPITALS}


def test_the_job_completes_and_who_was_drawn_trained(runs: Runs) -> None:
    record = runs.deployed.record
    assert (runs.deployed.state, record.status) == ("FINISHED:COMPLETED", "completed")
    for entry in record.rounds:
        assert sum(entry.rule["drawn"].values()) == 3
        assert set(entry.accepted) == set(entry.rule["drawn"])
    assert {item.site for item in record.evaluations} == set(HOSPITALS)


def test_the_record_has_the_sketches_and_the_distances_they_say(runs: Runs, known: dict[str, Known]) -> None:
    reported = runs.deployed.record.preparation["sketches"]
    sketches = {site: known[site].sketch for site in SKETCHED}
    assert reported["sites"] == {
        site: {"texts": known[site].texts, "empty": False, "bytes": len(sketches[site].to_bytes())}
        for site in SKETCHED
    }
    assert reported["key"] == sketches["site-1"].fingerprint.hex()[:8]
    assert reported["distances"]["order"] == list(HOSPITALS)
    apart = {
        (one, other): float(np.mean(sketches[one].values != sketches[other].values))
        for one in SKETCHED
        for other in SKETCHED
        if one < other
    }
    assert len(set(apart.values())) == 3, "distances that are alike would not show who is who"
    typical = float(np.mean(list(apart.values())))
    for i, one in enumerate(HOSPITALS):
        for j, other in enumerate(HOSPITALS):
            wanted = 0.0 if i == j else apart.get((min(one, other), max(one, other)), typical)
            assert reported["distances"]["matrix"][i][j] == pytest.approx(wanted, abs=1e-4)


def test_who_lets_no_sketch_out_is_named_with_the_reason_and_trains(runs: Runs) -> None:
    record = runs.deployed.record
    without = record.preparation["sketches"]["without"]
    assert set(without) == {DENIES}
    assert "policy.knowledge_sketch" in without[DENIES]
    assert any(DENIES in entry.accepted for entry in record.rounds)


def report(kit: Path, job_id: str) -> dict[str, Any]:
    """What `medflare egress report` says of a job at a site."""
    said = CliRunner().invoke(app, ["egress", "report", str(kit), "--job", job_id, "--json"])
    assert said.exit_code == 0, said.output
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_the_report_of_each_site_lists_its_sketch_and_the_one_that_stayed(
    federation: Federation, runs: Runs, known: dict[str, Known]
) -> None:
    for site in HOSPITALS:
        reported = report(federation.kits / site, runs.deployed.job_id)
        assert reported["problems"] == []
        asked = [
            row["round"] for row in reported["messages"] + reported["blocked"] if row["task"] == "sketch"
        ]
        data = known[site].sketch.to_bytes()
        left = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        assert asked == [-1, 1]
        assert [row["sketch"] for row in reported["messages"] if "sketch" in row] == [left] * (site != DENIES)
        assert [row["rules"] for row in reported["blocked"]] == [["policy.knowledge_sketch"]] * 2 * (
            site == DENIES
        )


def test_exact_sizes_are_those_of_the_graphs_and_who_has_not_said_yes_tells_none(
    runs: Runs, known: dict[str, Known]
) -> None:
    record = runs.exact.record
    assert (runs.exact.state, record.status) == ("FINISHED:COMPLETED", "completed")
    reported = record.preparation["exact"]
    assert "sketches" not in record.preparation
    assert {site: facts["elements"] for site, facts in reported["sites"].items()} == {
        site: len(known[site].graph) for site in SKETCHED
    }
    assert set(reported["without"]) == {DENIES}
    assert "policy.knowledge_exact" in reported["without"][DENIES]
    both = {
        (one, other): len(known[one].graph.keys() & known[other].graph.keys())
        for one, other in combinations(SKETCHED, 2)
    }
    assert {tuple(pair["sites"]): pair["shared"] for pair in reported["pairs"]} == both
    assert min(both.values()) > 0
    place = {site: i for i, site in enumerate(reported["distances"]["order"])}
    for (one, other), shared in both.items():
        either = len(known[one].graph.keys() | known[other].graph.keys())
        apart = reported["distances"]["matrix"][place[one]][place[other]]
        assert apart == pytest.approx(1 - shared / either, abs=1e-6)


def test_the_report_of_each_site_lists_who_its_elements_were_for(federation: Federation, runs: Runs) -> None:
    for site in SKETCHED:
        reported = report(federation.kits / site, runs.exact.job_id)
        assert reported["problems"] == []
        partners = {
            row["exact"]["partner"] for row in reported["messages"] if "partner" in row.get("exact", {})
        }
        assert partners == set(SKETCHED) - {site}


def test_no_key_triple_or_question_is_found_outside_the_sites(
    federation: Federation, runs: Runs, hospitals: Path, known: dict[str, Known]
) -> None:
    rows = [
        json.loads(line)
        for file in hospitals.glob("*/questions.jsonl")
        for line in file.read_text().splitlines()
        if '"train"' in line
    ]
    (secret,) = {own.secret for own in known.values()}
    ends = {end for own in known.values() for triple in own.graph for end in (triple.head, triple.tail)}
    concepts = {end.encode() for end in ends - {"patient"}}
    private = {secret.encode(), bytes.fromhex(secret), str(hospitals).encode(), *concepts}
    private |= {row[key].encode() for row in rows for key in ("id", "question")}
    private |= {word.encode() for own in known.values() for word in own.elements}
    assert len(concepts) > 20
    assert len(rows) > 40
    for word in (secret.encode(), min(concepts)):
        assert found_in(federation.kits / "site-1", {word}), "the search would not find what it looks for"
    for folder in (
        federation.kits / SERVER,
        federation.kits / ADMIN,
        runs.deployed.folder,
        runs.exact.folder,
    ):
        assert found_in(folder, private) == []


def test_draws_seconds_and_state_are_the_simulators(runs: Runs) -> None:
    ours, theirs = runs.deployed.record, runs.simulated.record
    assert differences(facts(ours), facts(theirs)) == []
    for entry, other in zip(ours.rounds, theirs.rounds, strict=True):
        assert entry.rule["drawn"] == other.rule["drawn"]
        assert entry.simulated_seconds == other.simulated_seconds
        assert entry.timings == other.timings
        assert min(value for spent in entry.timings.values() for value in spent.values()) > 0
    first, second = (entry.rule["solution"]["q"] for entry in ours.rounds)
    assert first != second, "nothing that was seen of the sites counted"
    for kept in ours.artefacts.values():
        assert_same_adapter(runs.deployed.folder / kept, runs.simulated.folder / kept)
