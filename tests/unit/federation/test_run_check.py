# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with a run and can be known before training is refused before training, with exit 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import refusal
from medflare.core.errors import ConfigError, RunError
from medflare.core.run_record import RunRecord, read_record
from medflare.egress.failures import SEE_LOG
from medflare.recipes import run_check, simulate

JOBS = Path(__file__).parents[3] / "jobs"
PROFILE = {"seconds_per_example": 0.1, "down": 1e6, "up": 1e6}


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "launch", lambda *args, **kwargs: pytest.fail("training has begun"))


@pytest.fixture
def site_file(tmp_path: Path) -> Path:
    """A file of three sites, a server's own entry and a site of another policy."""
    block = "cohort: {format: manifest, root: .}"
    names = {"site-1": "", "site-2": "", "site-3": "", "open": ", policy: {min_sites: 2}", "server": ""}
    text = "".join(f"  {name}: {{{block}{more}}}\n" for name, more in names.items())
    (tmp_path / "site.yaml").write_text(f"sites:\n{text}")
    return tmp_path / "site.yaml"


CASES = [
    (["--unseen", "hospitl-4"], "--unseen hospitl-4: not in"),
    (["--unseen", "server"], "--unseen server: not in"),
    (["--sites", "site-9"], "--sites site-9: not in"),
    (["--sites", "site-1,site-2", "--unseen", "site-2"], "site-2: in --sites and in --unseen"),
    (["--unseen", "site-1,site-2,site-3,open"], "--unseen names every site"),
    (["--set", "min_responses=5"], "min_responses is 5, and 4 sites take part"),
    (["--set", 'sites=["site-1","site-7"]'], "the job's `sites` names site-7"),
    (
        ["--set", "protection=masking", "--sites", "site-1,site-2"],
        "2 sites are fewer than these want: site-1 (3), site-2 (3)",
    ),
    (["--set", "protection=masking", "--set", "rule=krum"], "must see each update"),
    (["--set", "protection=masking", "--set", "uplink=int8"], "mean nothing once they are added"),
    (["--set", 'mandatory_sites=["site-7"]'], "the job's `mandatory_sites` names site-7, which take no part"),
    (["--set", "late=next_round", "--set", "protection=masking"], "belongs to the sum of its own round"),
    (["--set", "late=never"], "'next_round' or 'staleness_weighted'"),
    (["--set", "straggler_share=0"], "straggler_share"),
    (["--set", "num_rounds=0"], "num_rounds"),
    (["--rounds", "0"], "--rounds"),
    (
        ["--sites", "site-1", "--set", "latency_profiles=" + json.dumps({"site-2": PROFILE})],
        "no latency profile for site-1",
    ),
]


@pytest.mark.parametrize(("options", "text"), CASES, ids=lambda value: str(value)[:50])
def test_it_is_refused(site_file: Path, tmp_path: Path, options: list[str], text: str) -> None:
    workspace = tmp_path / "ws"
    assert text in refusal(2, "run", JOBS / "fedmrg", "-f", site_file, "-w", workspace, *options)
    assert not workspace.exists()


def test_a_quorum_out_of_reach_is_not_laid_to_policies(site_file: Path, tmp_path: Path) -> None:
    text = refusal(
        2, "run", JOBS / "fedmrg", "-f", site_file, "-w", tmp_path / "ws", "--set", "min_responses=5"
    )
    assert "policy" not in text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("{folder: missing}", "site-3: backbone.folder: there is no folder '"),
        ("{folder: pickled}", "site-3: backbone.folder: '"),
        ("{folder: m.gguf}", "medflare models add "),
        ("{name: m.gguf}", "Type 'medflare models add m.gguf' once, and name the model: {name: m}."),
        ("{name: Maker/Llama-8B}", "type 'medflare models add FOLDER --name llama-8b' here"),
        ("Maker/Llama-8B", "name the model: {name: llama-8b}"),
        ("smollm2", "write {name: smollm2}, or {folder: FOLDER}"),
        ("{name: ./folder/of/it}", "Write {folder: ./folder/of/it}"),
        ("{name: absent}", "medflare models add FILE.gguf --name absent"),
    ],
)
def test_a_backbone_that_is_not_there_is_refused_with_what_to_type(
    site_file: Path, tmp_path: Path, given: str, text: str
) -> None:
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").touch()
    file = site_file.read_text().replace("site-3: {", f"site-3: {{backbone: {given}, ")
    site_file.write_text(file)
    said = refusal(2, "run", JOBS / "fed_medlora", "-f", site_file, "-w", tmp_path / "ws")
    assert text in said
    assert "Value error" not in said
    assert not (tmp_path / "ws").exists()


def test_records_that_are_not_there_are_named_before_the_run(site_file: Path, tmp_path: Path) -> None:
    there = "site-2: {cohort: {format: manifest, root: "
    site_file.write_text(site_file.read_text().replace(f"{there}.", f"{there}nowhere"))
    text = f"site-2: cohort.root: there is no folder '{tmp_path / 'nowhere'}'. Correct it in site.yaml."
    assert text in refusal(2, "run", JOBS / "fed_medlora", "-f", site_file, "-w", tmp_path / "ws")
    assert not (tmp_path / "ws").exists()


LOG = """[time] worker
Traceback (most recent call last):
  File "reading.py", line 1, in read
medflare.core.errors.DataError: /data: holds
no usable record
Traceback (most recent call last):
  File "executor.py", line 1, in execute
medflare.egress.failures.TaskError: E3 DataError: Details are in worker.log at the site.
"""


def test_a_simulated_run_shows_what_a_site_withheld_from_its_server(tmp_path: Path) -> None:
    log = tmp_path / "site-1" / "simulate_job" / "worker" / "worker.log"
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    reason = f"prepare: 0 accepted, 1 needed. site-1: E3 DataError: {SEE_LOG}"
    shown = f"\n  site-1: DataError: /data: holds\nno usable record ({log})\n  Log: "
    for said, text in ((reason, shown), ("too few sites.", "too few sites. Log: ")):
        record = RunRecord(
            job="toy", method="toy", run_id="r", started="2026-11-20T10:00:00Z", status="failed", reason=said
        )
        folder = tmp_path / simulate.SERVER_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(record.model_dump_json())
        with pytest.raises(RunError) as error:
            simulate.judge(tmp_path)
        assert text in str(error.value)


def test_two_sites_that_accept_it_may_mask(site_file: Path, tmp_path: Path) -> None:
    text = site_file.read_text().replace("site-1: {", "site-1: {policy: {min_sites: 2}, ")
    site_file.write_text(text)
    known = simulate.described_sites(tmp_path, site_file)
    job = simulate.override(simulate.read_job(JOBS / "fedmrg"), {"protection": "masking"})
    _, chosen = run_check.check_run(job, known, ["site-1", "open"], tmp_path)
    assert chosen == ["site-1", "open"]


def test_a_hospital_alone_whose_policy_wants_others_is_told_before_anything_starts(
    site_file: Path, tmp_path: Path
) -> None:
    """`cohort init` writes such a policy; one site among others that refuses costs itself alone."""
    text = site_file.read_text().replace("site-1: {", "site-1: {policy: {min_sites: 3}, ")
    site_file.write_text(text)
    asked = refusal(2, "run", JOBS / "fedmrg", "-f", site_file, "-w", tmp_path / "ws", "--sites", "site-1")
    assert "1 site(s) take part, fewer than the policy of these asks for: site-1 (3)" in asked
    assert "For a trial of fewer on this machine, lower policy.min_sites" in asked
    known = simulate.described_sites(tmp_path, site_file)
    job = simulate.override(simulate.read_job(JOBS / "fedmrg"), {"min_responses": 1})
    assert run_check.check_run(job, known, ["site-1", "site-2"], tmp_path)[1] == ["site-1", "site-2"]
    with pytest.raises(ConfigError, match=r"2 site\(s\) take part, fewer .* site-1 \(3\)"):
        run_check.check_run(
            simulate.override(job, {"min_responses": None}), known, ["site-1", "site-2"], tmp_path
        )


def test_a_method_of_visits_names_the_sites_without_before_anything_starts(
    site_file: Path, tmp_path: Path
) -> None:
    asked = refusal(
        2, "run", JOBS / "fedtar", "-f", site_file, "-w", tmp_path / "ws", "--sites", "site-1,site-2"
    )
    assert "site 'site-1': this method needs patients with visits; add 'visits: {}'" in asked
    assert "site 'site-2'" in asked


def test_rounds_that_a_preset_divides_are_told_before_they_are_counted(
    site_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for three rounds sees twelve of them counted."""
    monkeypatch.setattr(simulate, "_to_its_end", lambda job, *rest: job)
    for changes, words in (
        ({"preset": "instruct"}, ["3, each of 4 exchanges: 12 are counted"]),
        ({"preset": "instruct", "exchanges": 1}, []),
        ({"exchanges": 2}, []),
    ):
        told: list[dict[str, Any]] = []
        job = simulate.run_simulator(
            JOBS / "fed_medlora",
            tmp_path / "ws",
            ["site-1", "site-2"],
            site_file,
            3,
            changes=changes,
            on_event=told.append,
            overwrite=True,
        )
        assert [event["reason"] for event in told if event["phase"] == "rounds"] == words
        assert job.controller["num_rounds"] == {1: 3, 2: 6, None: 12}[changes.get("exchanges")]


def test_a_full_disk_is_refused(site_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_check, "free_megabytes", lambda folder: 3)
    message = refusal(2, "run", JOBS / "fedmrg", "-f", site_file, "-w", tmp_path / "ws")
    assert "3 MB free, and a run needs 200 MB at least" in message


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A completed run."""
    record = RunRecord(job="toy", method="toy", run_id="r", started="2026-11-20T10:00:00Z", best_round=None)
    record.write(tmp_path / "run/run.json")
    return tmp_path / "run"


def test_an_evaluation_of_what_is_not_there_is_refused(site_file: Path, run: Path) -> None:
    assert "--split foo: expected train, val, test" in refusal(2, "evaluate", run, "--split", "foo")
    assert "--split foo" in refusal(2, "evaluate", run, "-f", site_file, "--split", "foo")
    assert "--sites site-9: not in" in refusal(2, "evaluate", run, "-f", site_file, "--sites", "site-9")


@pytest.mark.parametrize(("kept", "text"), [({}, "."), ({"best": "best"}, "; it has: best.")])
def test_a_run_that_kept_no_adapter_says_how_it_ended(
    site_file: Path, run: Path, kept: dict[str, str], text: str
) -> None:
    record = read_record(run / "run.json")
    record.artefacts, record.status, record.reason = kept, "failed", "too few sites answered"
    record.write(run / "run.json")
    said = refusal(3, "evaluate", run, "-f", site_file, "--sites", "site-1")
    assert f"the run kept no final adapter{text} The run is failed: too few sites answered" in said


@pytest.mark.parametrize("options", [["--size", "31"], ["--patients", "-3"]])
def test_hospitals_of_impossible_sizes_are_refused(tmp_path: Path, options: list[str]) -> None:
    assert options[0] in refusal(2, "cohort", "make", tmp_path / "made", *options)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["Köln", "a b", "a.b", "-x", "x@y", "a/b", "a,b", "local", "x" * 101])
def test_a_site_that_flare_cannot_have_is_named_before_anything_starts(name: str, tmp_path: Path) -> None:
    """FLARE's own words came after its start: "Invalid FQCN", or "Could not start the Server App"."""
    file = tmp_path / "site.yaml"
    block = {"cohort": {"format": "manifest", "root": "."}}
    file.write_text(yaml.safe_dump({"sites": {name: block, "site-2": block}}), encoding="utf-8")
    said = refusal(2, "run", JOBS / "fedmrg", "-f", file, "--workspace", tmp_path / "ws")
    assert f"site '{name}' in site.yaml: FLARE" in said
    assert "site 'site-2'" not in said


@pytest.mark.parametrize(("text", "found"), [("", "nothing"), ("[1]", "a list"), ("5", "one value")])
def test_a_file_that_describes_no_site_says_what_it_holds(text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(text)
    said = refusal(2, "run", JOBS / "fedmrg", "-f", tmp_path / "site.yaml", "--workspace", tmp_path / "ws")
    assert f"expected 'key: value' lines, found {found}." in said
