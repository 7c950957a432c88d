# SPDX-License-Identifier: Apache-2.0
"""`medflare serve`: its pages, files and metrics, and who is not answered."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from flask import Response, request
from flask.testing import FlaskClient
from markupsafe import escape
from werkzeug.serving import make_server

from command_line import refusal
from medflare.core.run_record import Estimate, RoundRecord, RunRecord, SiteRecord, Traffic
from medflare.core.sample_drafts import SampleDraft
from medflare.recipes.workspace_lock import locked
from medflare.serving.app import create_app
from medflare.worker.draft_file import write_drafts
from medflare.worker.progress_file import TaskProgress, write_progress
from record_builders import evaluation


def record(run_id: str, status: str = "completed", loss: float = 2.0, seed: int = 0) -> RunRecord:
    rounds = [
        RoundRecord(
            round=number,
            seconds=20.0,
            accepted={"north": 40},
            absent={} if number else {"south": "late"},
            metrics={"north": {"train_loss": loss - number}},
            mean={"train_loss": loss - number},
            traffic={"north": Traffic(sent=1000, received=2000)},
        )
        for number in range(2)
    ]
    return RunRecord(
        job="fed_medlora",
        method="fed_medlora",
        task="extraction",
        run_id=run_id,
        status=status,
        started="2026-11-24T08:00:00+00:00",
        seconds=47.0,
        seed=seed,
        epsilon=1.5,
        configuration={"rule": "fedavg", "rounds": 4},
        sites={
            "north": SiteRecord(backbone="b", fingerprint="f"),
            "south": SiteRecord(backbone="b", fingerprint="f"),
        },
        rounds=rounds,
        evaluations=[
            evaluation("north", "generic", 30, {"ner_strict_f1": Estimate(value=0.4, low=0.3, high=0.5)})
        ],
    )


DRAFT = SampleDraft(
    record="s1",
    reference="Pneumonoultramicroscopicsilicovolcanoconiosis. " * 8,
    written="No <i>acute</i> findings.",
)
WORKER = Path("north/simulate_job/worker")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run that is done, and one that goes on in its third round of four."""
    record("one").write(tmp_path / "first" / "run.json")
    record("two", "running", loss=3.0, seed=7).write(tmp_path / "<b>second" / "run.json")
    began = time.time() + 60  # later than any request of these tests: no time has passed in the round
    events = [
        {"phase": "round done", "round": 1, "seconds": 20.0, "mean": {}, "time": time.time()},
        {"phase": "round", "round": 2, "rounds": 4, "sites": ["north", "south"], "time": began},
        {"phase": "update", "site": "north", "verdict": "accepted", "loss": 0.5, "time": time.time()},
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "<b>second" / "progress.jsonl").write_text(lines)
    write_drafts(tmp_path / "<b>second" / WORKER, 1, [DRAFT])
    return tmp_path


@pytest.fixture
def client(runs: Path) -> FlaskClient:
    return create_app(runs).test_client()


def test_the_list_has_every_run_with_its_state_and_escapes_names(client: FlaskClient) -> None:
    html = client.get("/").text
    assert '<a href="/runs/first/">first</a>' in html
    assert "&lt;b&gt;second" in html
    assert "<b>second" not in html
    assert "2 of 4 rounds done, about 40 s of training left" in html


def test_a_run_that_goes_on_says_how_far_it_is_and_reloads_itself(client: FlaskClient) -> None:
    answer = client.get("/runs/%3Cb%3Esecond/")
    assert "round 3 of 4" in answer.text
    assert "<li>north <b>accepted, loss 0.5</b></li>" in answer.text
    assert '<progress value="2" max="4"' in answer.text
    nonce = re.search(r'<script nonce="([^"]+)">', answer.text)
    assert nonce is not None
    assert f"script-src 'nonce-{nonce[1]}'" in answer.headers["Content-Security-Policy"]


def test_its_head_alone_is_shown_anew_with_each_sites_step(client: FlaskClient, runs: Path) -> None:
    workspace = runs / "steps"
    record("three", "running").write(workspace / "server" / "simulate_job" / "run.json")
    worker = workspace / "north" / "simulate_job" / "worker"
    worker.mkdir(parents=True)
    (runs / "<b>second" / "progress.jsonl").rename(workspace / "server" / "simulate_job" / "progress.jsonl")
    write_progress(worker, TaskProgress(task="fit", counted="steps", done=3, total=30))
    with locked(workspace):
        page, first = client.get("/runs/steps/").text, client.get("/runs/steps/live").json
        assert first is not None
        assert "<li>north <b>step 3 of 30</b></li>" in page
        assert "<li>north <b>step 3 of 30</b></li>" in first["head"]
        write_progress(worker, TaskProgress(task="fit", counted="steps", done=4, total=30))
        second = client.get("/runs/steps/live").json
        assert second is not None
        assert "step 4 of 30" in second["head"]
        assert first["version"] == second["version"]


def test_what_a_model_wrote_last_is_shown_while_the_run_goes_on(client: FlaskClient) -> None:
    for text in (
        client.get("/runs/%3Cb%3Esecond/").text,
        client.get("/runs/%3Cb%3Esecond/live").json["head"],
    ):
        assert "No &lt;i&gt;acute&lt;/i&gt; findings." in text
        assert "north, 2" in text
        assert "never a diagnosis" in text


def test_without_a_gallery_no_text_of_a_patient_is_shown(runs: Path) -> None:
    client = create_app(runs, gallery=0).test_client()
    assert "acute" not in client.get("/runs/%3Cb%3Esecond/").text
    assert "acute" not in client.get("/runs/%3Cb%3Esecond/live").json["head"]


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"round": -1, "drafts": []}', '{"round": 1, "drafts": ["x"]}', "\xff", "9" * 2_000_001],
)
def test_a_damaged_file_of_drafts_is_none(content: str, client: FlaskClient, runs: Path) -> None:
    (runs / "<b>second" / WORKER / "drafts.json").write_bytes(content.encode("latin-1"))
    answer = client.get("/runs/%3Cb%3Esecond/")
    assert answer.status_code == 200
    assert "acute" not in answer.text


def test_what_the_server_warned_of_is_on_the_page(client: FlaskClient, runs: Path) -> None:
    warned = record("one")
    warned.preparation["warnings"] = ["the rate is the <embedded> model's"]
    warned.write(runs / "first" / "run.json")
    assert "Warning: the rate is the &lt;embedded&gt; model" in client.get("/runs/first/").text


def test_a_run_that_stalled_says_since_when(client: FlaskClient, runs: Path) -> None:
    """The event of the heartbeat, which also starts the operator's `on_stall`."""
    event = {"phase": "stalled", "reason": "no progress for 240 s", "time": time.time()}
    with (runs / "<b>second" / "progress.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    assert "stalled no progress for 240 s" in client.get("/runs/%3Cb%3Esecond/").text


def test_a_run_that_is_done_has_no_script(client: FlaskClient) -> None:
    answer = client.get("/runs/first/")
    assert "<script" not in answer.text
    assert "completed" in answer.text


def test_the_version_changes_with_the_record(client: FlaskClient, runs: Path) -> None:
    before = client.get("/runs/first/live").json
    assert client.get("/runs/first/live").json == before
    record("one", loss=5.0).write(runs / "first" / "run.json")
    assert client.get("/runs/first/live").json != before


def test_numbers_are_files(client: FlaskClient) -> None:
    scores = list(csv.DictReader(io.StringIO(client.get("/runs/first/scores.csv").text)))
    assert [(row["site"], row["metric"], row["value"], row["low"]) for row in scores] == [
        ("north", "ner_strict_f1", "0.4", "0.3")
    ]
    rounds = list(csv.DictReader(io.StringIO(client.get("/runs/first/rounds.csv").text)))
    assert ("2", "north", "train_loss", "1.0") in [
        (row["round"], row["site"], row["metric"], row["value"]) for row in rounds
    ]
    assert ("1", "south", "absent", "1") in [
        (row["round"], row["site"], row["metric"], row["value"]) for row in rounds
    ]
    assert client.get("/runs/first/secrets.csv").status_code == 404


def test_figures_are_svg_files_of_their_own(client: FlaskClient) -> None:
    address = re.search(r'href="(figures/[^"]+\.svg)"', client.get("/runs/first/").text)
    assert address is not None
    answer = client.get(f"/runs/first/{address[1]}")
    root = ET.fromstring(answer.text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.find("{http://www.w3.org/2000/svg}style") is not None
    assert answer.mimetype == "image/svg+xml"


def test_two_runs_stand_side_by_side(client: FlaskClient) -> None:
    html = client.get("/compare", query_string={"first": "first", "second": "<b>second"}).text
    assert re.search(r"<th scope=\"row\">seed</th><td[^>]*>0</td><td[^>]*>7</td>", html)
    assert "rule" not in html.split("Scores")[0].split("What differs")[1]
    assert "+0.0" in html
    assert "do not tell the noise of training" in html
    assert client.get("/compare", query_string={"first": "first", "second": "none"}).status_code == 404


def test_prometheus_gets_rounds_bytes_absences_and_epsilon(client: FlaskClient) -> None:
    text = client.get("/metrics").text
    assert 'medflare_run_rounds_done{job="fed_medlora",run="first"} 2.0' in text
    assert 'medflare_run_epsilon{job="fed_medlora",run="first"} 1.5' in text
    assert 'medflare_run_site_sent_bytes{job="fed_medlora",run="first",site="north"} 2000.0' in text
    assert 'medflare_run_site_absent_rounds{job="fed_medlora",run="first",site="south"} 1.0' in text
    assert 'medflare_run_running{job="fed_medlora",run="<b>second"} 1.0' in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", ""])
def test_a_name_from_elsewhere_that_resolves_here_is_not_answered(host: str, client: FlaskClient) -> None:
    answer = client.get("/runs/first/", headers={"Host": host})
    assert answer.status_code == 403
    assert "fed_medlora" not in answer.text


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fetc", "%2fetc%2fpasswd", "first%2f..%2ffirst"])
def test_a_name_is_never_a_path(name: str, client: FlaskClient) -> None:
    assert client.get(f"/runs/{name}/").status_code in (308, 404)
    assert client.get(f"/runs/{name}/live").status_code == 404


def test_nothing_can_be_changed(client: FlaskClient) -> None:
    for method in ("post", "put", "delete", "patch"):
        assert getattr(client, method)("/runs/first/").status_code == 405


def test_a_damaged_record_is_a_sentence(client: FlaskClient, runs: Path) -> None:
    (runs / "first" / "run.json").write_text("{")
    answer = client.get("/runs/first/")
    assert answer.status_code == 500
    assert "is not a run record" in answer.text
    assert client.get("/").status_code == 200


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(3, "serve", tmp_path / "none")


CHROMIUM = shutil.which("chromium")


WIDTHS = (1280, 390)
"""Windows of a desk and of a telephone, in pixels."""
MEASURE = """<!doctype html>
{frames}
<script>
addEventListener("load", () => setTimeout(() => {{
  const frames = [...document.querySelectorAll("iframe")];
  document.title = frames.map(f => f.contentDocument.documentElement.scrollWidth).join(" ");
}}, 50));
</script>"""
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=4000 --dump-dom"
)


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    """The address of a server that also has a page /measure?page=..., which shows a page in both windows."""
    app = create_app(runs)

    @app.get("/measure")
    def measure() -> Response:
        source = escape(request.args["page"])
        frames = "".join(
            f'<iframe width={width} height=900 style="border:0" src="{source}"></iframe>' for width in WIDTHS
        )
        policy = {"Content-Security-Policy": "frame-src 'self'; script-src 'unsafe-inline'"}
        return Response(MEASURE.format(frames=frames), headers=policy)

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    "page", ["/", "/runs/first/", "/runs/%3Cb%3Esecond/", "/compare?first=first&second=%3Cb%3Esecond"]
)
def test_no_page_is_wider_than_the_window(page: str, address: str, tmp_path: Path) -> None:
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    command.append(f"{address}/measure?{urlencode({'page': page})}")
    html = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    widths = re.search(r"<title>(\d+) (\d+)</title>", html)
    assert widths is not None, html[:500]
    for measured, window in zip(widths.groups(), WIDTHS, strict=True):
        assert int(measured) <= window
    if folder := os.environ.get("MEDFLARE_SCREENSHOTS"):
        for window in WIDTHS:
            file = Path(folder) / f"{re.sub(r'[^a-z]+', '-', page.lower()).strip('-') or 'runs'}-{window}.png"
            view = [*command[:-1], f"--window-size={window},1400", f"--screenshot={file}", f"{address}{page}"]
            subprocess.run(view, capture_output=True, timeout=120, check=True)
            assert file.stat().st_size > 0
