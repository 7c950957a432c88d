# SPDX-License-Identifier: Apache-2.0
"""Whatever comes from outside is refused in words or read: no other error, no hang, no large memory.

The repository's profile tries the same few examples each time; `make fuzz` looks for new ones.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fed_harness import SITES, Federation, use_toy_sites
from fuzz_values import (
    VALUES,
    any_json,
    attempt,
    bounded,
    broken_bytes,
    changed,
    examples,
    sendable,
    write_files,
)
from hypothesis import given
from hypothesis import strategies as st
from lying_server import FAILURE, REPLY, REQUEST, Answer, LyingServer, request_fields
from lying_site import lying
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from medflare.core.errors import MedflareError
from medflare.core.run_record import RunRecord, read_record
from medflare.data.settings.site import load_site
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument
from medflare.evaluation.predictions import WIDTH, Prediction
from medflare.federation.flare_messages import read_reply
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.peft_folder import readable
from medflare.models.text_model import TextModel
from medflare.protocol.replies import check_facts
from medflare.recipes.job import CLIENT_CONFIG, SERVER_CONFIG
from medflare.recipes.job_reader import read_job
from medflare.reporting.page import write_page
from medflare.tasks.prediction_files import (
    holds_extraction,
    read_answers,
    read_documents,
    read_predictions,
    read_summaries,
)
from medflare.tasks.summaries.summariser import load_summariser
from medflare.wire.files import save_tensors
from record_builders import QUESTIONS, evaluation, written

JOBS = Path(__file__).parents[2] / "jobs"
UNEXPECTED = 40
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64)


@st.composite
def tensors_like(draw: st.DrawFn, state: dict[str, Any]) -> dict[str, Any]:
    """Tensors of other names, shapes, types and values than declared, or no tensors at all."""
    result = dict(state)
    for name in draw(st.lists(st.sampled_from(sorted(state)), max_size=2)):
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        value = draw(st.sampled_from((0.0, -1.0, 1e30, float("inf"), float("nan"))))
        dtype = draw(st.sampled_from(DTYPES))
        is_integer = not (dtype.is_floating_point or dtype.is_complex)
        tensor = torch.full(shape, 1 if is_integer else value, dtype=dtype)
        other = draw(st.sampled_from((name, name, "x", "../x", "scale:x", f"int8:2x2:{name}", "total:x", "")))
        result.pop(name, None)
        if draw(st.booleans()):
            result[other] = tensor.to_sparse() if draw(st.integers(0, 9)) == 0 and not is_integer else tensor
    return result


# ---- requests --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LyingServer]:
    with pytest.MonkeyPatch.context() as patch:
        use_toy_sites(patch)
        server = LyingServer(tmp_path_factory.mktemp("fuzz"))
        assert not any(answer.refused for answer in server.prepare().values())
        yield server
        server.close()


@pytest.fixture(scope="module")
def state(server: LyingServer) -> dict[str, Any]:
    return server.initial_state()


OPTIONS: dict[str, dict[str, Any]] = {
    "prepare": {"mixture": {"components": 4}},
    "initialise": {},
    "sketch": {"held": {}, "exchange": "first", "growth": 0.1},
    "fit": {"canary": False},
    "evaluate": {"split": "val"},
    "finish": {},
    "count": {},
    "offer": {"partner": "site-2", "elements": 30, "asks": True},
    "answer": {"partner": "site-2"},
    "compare": {"partner": "site-2"},
    "keys": {"secure_sum": {"terms": {"run_id": "run-1", "round": 0, "sites": list(SITES)}}},
    "shares": {"secure_sum": {"adverts": {"site-1": {"keys": ["a"]}}}},
    "confirm": {"secure_sum": {"survivors": list(SITES)}},
    "reveal": {"secure_sum": {"confirmations": {"site-1": "x"}}},
}
PLAN = {"round": 0, "rounds": 5, "steps": 2, "hints": {"fedprox": {"mu": 0.1}, "probe": 1}, "seed": 3}


def ordinary(task: str) -> dict[str, Any]:
    """An ordinary request of a task, of which parts are changed."""
    fields = request_fields(task, options=OPTIONS[task])
    return {**fields, "plan": dict(PLAN)} if fields["plan"] else fields


def is_refused_in_words_or_read(answer: Answer) -> None:
    if answer.refused:
        assert answer.failure["code"] != UNEXPECTED, answer.text
        assert 0 < len(answer.text) < 2100
        assert "/tmp" not in answer.text


@examples(30)
@given(st.data())
def test_requests(server: LyingServer, state: dict[str, Any], data: st.DataObject) -> None:
    task = data.draw(st.sampled_from(sorted(OPTIONS)))
    fields = sendable(data.draw(changed(ordinary(task)) | VALUES))
    drawn = data.draw(tensors_like(state)) if task in ("fit", "evaluate", "finish") else {}
    # FLARE's own encoder refuses sparse tensors, so a request cannot carry one; replies below can.
    tensors = {name: value.to_dense() if value.is_sparse else value for name, value in drawn.items()}
    data_kind = DataKind.WEIGHTS if tensors else DataKind.APP_DEFINED
    message = DXO(data_kind, data=tensors, meta={REQUEST: fields}).to_shareable()
    with bounded():
        answer = server.send_raw("site-1", task, message)
    is_refused_in_words_or_read(answer)


def test_a_site_that_was_sent_all_this_still_takes_part(server: LyingServer, state: dict[str, Any]) -> None:
    answer = server.send("site-2", "fit", state, round=4, plan={"round": 4, "rounds": 5, "steps": 1})
    assert answer.failure == {}
    assert not server.send("site-1", "prepare").refused


# ---- replies ---------------------------------------------------------------------------------------------

DESCRIPTION = {
    "site": "site-2",
    "examples": {"train": 28, "val": 8},
    "backbone": {"name": "toy", "fingerprint": "f0"},
    "settings": {},
}
SPEC = {"w": [[2, 3], "float32"]}
TEST = {"site": "site-2", "role": "participant", "adapter": "generic", "split": "test", "studies": 3}
TEST |= {"metrics": {"loss": {"value": 0.5, "low": 0.4, "high": 0.6}}, "predictions": "p.jsonl"}
INITIAL = {
    "adapter.base_model.model.layer.lora_A.weight": torch.ones(1, 4),
    "head.weight": torch.ones(2, 3),
}
FACTS: dict[str, dict[str, Any]] = {
    "prepare": {
        "describe": DESCRIPTION,
        "shared": SPEC,
        "sums": {},
        "first_values": {"w": {"sha256": "0" * 64, "norm": 1.5}},
        "method": "toy",
        "seconds": 1.0,
    },
    "initialise": {"seconds": 1.0},
    "fit": {"examples": 28, "metrics": {"loss": 0.5}, "seconds": 1.0},
    "evaluate": {"metrics": {"loss": 0.5}, "seconds": 1.0},
    "finish": {"evaluations": [TEST], "seconds": 1.0},
    "sketch": {"state": "sent", "sketch": "aa", "examples": 3, "seconds": 1.0},
    "keys": {"secure_sum": {"keys": ["a"]}},
}


@examples(80)
@given(st.data())
def test_replies(data: st.DataObject) -> None:
    task = data.draw(st.sampled_from(sorted(FACTS)))
    facts = data.draw(changed(FACTS[task]) | VALUES)
    content = data.draw(st.just({"round": 0, "facts": facts}) | changed({"round": 0, "facts": facts}))
    tensors = data.draw(tensors_like({"w": torch.ones(2, 3)}))
    message = DXO(DataKind.WEIGHT_DIFF, data=tensors or {"w": 1}, meta={REPLY: content}).to_shareable()
    with bounded():
        reply = read_reply(message)
    if reply.failure is None:
        attempt(lambda: check_facts(task, reply.facts, "site-2"), MedflareError)
    else:
        assert len(reply.failure.text) < 2100


@examples(30)
@given(changed({"code": 20, "text": "x", "round": 0}) | VALUES)
def test_failures(content: Any) -> None:
    message = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    message[FAILURE] = content
    with bounded():
        failure = read_reply(message).failure
    assert failure is not None
    assert len(failure.text) < 2100


@examples(30)
@given(VALUES)
def test_messages_of_any_form(content: Any) -> None:
    for message in (content, Shareable(content) if isinstance(content, dict) else Shareable()):
        assert read_reply(message).failure is not None


@pytest.mark.timeout(120)
@examples(3)
@given(st.data())
def test_whatever_one_site_sends_the_others_complete_the_run(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    task = data.draw(st.sampled_from(("prepare", "initialise", "fit", "evaluate", "finish")))
    facts = sendable(data.draw(changed(FACTS[task])))
    sent = data.draw(tensors_like(INITIAL)) if task in ("initialise", "fit") else {}

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        reply["facts"] = facts
        tensors.clear()
        tensors.update(sent)

    with pytest.MonkeyPatch.context() as patch, bounded():
        use_toy_sites(patch)
        run = Federation(
            root=tmp_path_factory.mktemp("run"),
            controller={"min_responses": 2, "num_rounds": 1},
            tamper=lying("site-2", {task: lie}),
        )
        record = run.run()
    assert record.status == "completed", record.reason
    assert {"site-1", "site-3"} <= set(record.rounds[0].accepted)


# ---- files -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


SITE = {
    "name": "site-1",
    "cohort": {"format": "manifest", "root": "../cohort", "max_skipped": 0.05},
    "device": "cpu",
    "threads": 2,
    "state": "../state",
    "backbone": {"folder": "../llama", "precision": "fp32"},
    "policy": {"jobs": ["fedmrg*"], "require": ["mask"], "min_sites": 3, "max_bytes_per_round": "64 MB"},
}


def any_yaml(document: Any) -> st.SearchStrategy[bytes]:
    written = yaml.safe_dump(document).encode()
    return changed(document).map(lambda value: yaml.safe_dump(value).encode()) | broken_bytes(written)


@examples(30)
@given(content=any_yaml(SITE) | any_yaml({"sites": {"site-1": SITE}}))
def test_site_yaml(folder: Path, content: bytes) -> None:
    write_files(folder, {"site.yaml": content})
    attempt(lambda: load_site(folder / "site.yaml", "site-1"), MedflareError)


def test_yaml_that_grows_without_end(folder: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12)]
    write_files(folder, {"site.yaml": "\n".join([*lines, "policy: *a11"]).encode()})
    assert attempt(lambda: load_site(folder / "site.yaml", "site-1"), MedflareError) is None


JOB_FILES = ("meta.json", SERVER_CONFIG, CLIENT_CONFIG)


@examples(30)
@given(st.data())
def test_job_files(folder: Path, data: st.DataObject) -> None:
    job = JOBS / data.draw(st.sampled_from(("fedmrg", "ddcs_qa", "fedtar")))
    files = {name: (job / name).read_bytes() for name in JOB_FILES}
    name = data.draw(st.sampled_from(JOB_FILES))
    files[name] = data.draw(any_json(json.loads(files[name])))
    write_files(folder / "job", files)
    attempt(lambda: read_job(folder / "job"), MedflareError)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, bytes]:
    """The files of a result folder of a run that wrote summaries."""
    base = load_backbone(tiny_backbone, "fp32", "cpu", "notes_decoder")
    adapters = TextModel(base, LoraSettings(rank=2), (GENERIC,), 0).adapters
    folder = tmp_path_factory.mktemp("result")
    save_tensors(folder / "adapter_model.safetensors", adapters.file_tensors(GENERIC))
    block = {"lora": {"rank": 2}, "peft": {"method": "lora"}, "max_tokens": 64, "writing": {"beams": 1}}
    facts = {"summarisation": block, "backbone": {"name": base.name, "fingerprint": base.fingerprint}}
    (folder / "summarisation.json").write_text(json.dumps(facts))
    (folder / "adapter_config.json").write_text(json.dumps(adapters.config_dict()))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_result_folder_itself_opens(folder: Path, result: dict[str, bytes], tiny_backbone: Path) -> None:
    complete = write_files(folder / "whole", result)
    assert readable(complete)
    assert load_summariser(complete, backbone=tiny_backbone) is not None


@examples(10)
@given(st.data())
def test_adapter_folders(
    folder: Path, result: dict[str, bytes], tiny_backbone: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(result)))
    as_json = st.nothing() if name.endswith(".safetensors") else any_json(json.loads(result[name]))
    content = data.draw(as_json | broken_bytes(result[name]))
    there = write_files(folder / "result", {**result, name: content})
    assert attempt(lambda: readable(there)) in (True, False)
    attempt(lambda: load_summariser(there, backbone=tiny_backbone), MedflareError)


HEART = EntityMention("problem", ((0, 5),))
ROWS: list[tuple[Callable[[Path], Any], dict[str, Any]]] = [
    (
        read_predictions,
        Prediction(
            study_id="s",
            patient_id="p",
            site="north",
            adapter="generic",
            reference="No effusion.",
            generated="Effusion.",
            gold_codes=(0,) * WIDTH,
            predicted_codes=(1,) * WIDTH,
            image="../x.png",
        ).model_dump(mode="json"),
    ),
    (read_answers, QUESTIONS[0].model_dump(mode="json")),
    (read_summaries, written(0, "a", "b").model_dump(mode="json")),
    (
        read_documents,
        ScoredDocument(
            note_id="n",
            site="north",
            adapter="generic",
            gold_entities=(HEART,),
            gold_links=(Link(HEART, HEART),),
            predicted_entities=(HEART,),
            text="heart failure",
        ).model_dump(mode="json"),
    ),
]


@examples(30)
@given(st.data())
def test_predictions_files(folder: Path, data: st.DataObject) -> None:
    read, row = data.draw(st.sampled_from(ROWS))
    path = write_files(folder, {"predictions.jsonl": data.draw(any_json(row))}) / "predictions.jsonl"
    attempt(lambda: read(path), MedflareError)
    attempt(lambda: holds_extraction(path), MedflareError)


@examples(15)
@given(st.data())
def test_pages_of_a_record_and_its_predictions(folder: Path, data: st.DataObject) -> None:
    k, task = data.draw(
        st.sampled_from(tuple(enumerate(("reports", "questions", "summaries", "extraction"))))
    )
    tested = evaluation("north", "generic", 1, predictions="p.jsonl")
    record = RunRecord(
        run_id="r", job="j", method="m", task=task, started="2026-01-01T00:00:00", evaluations=[tested]
    ).model_dump(mode="json")
    row = copy.deepcopy(ROWS[k][1])
    files = {"run.json": json.dumps(record).encode(), "p.jsonl": json.dumps(row).encode()}
    name = data.draw(st.sampled_from(sorted(files)))
    files[name] = data.draw(any_json(record if name == "run.json" else row))
    there = write_files(folder / "page", files)
    attempt(lambda: read_record(there), MedflareError)
    attempt(lambda: write_page(there), MedflareError)
