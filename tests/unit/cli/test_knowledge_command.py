# SPDX-License-Identifier: Apache-2.0
"""`medflare knowledge` and preflight's look at a site's knowledge graph."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import medflare
from medflare.data.settings.site import load_site
from medflare.deployment.preflight import knowledge as preflight_knowledge
from medflare.deployment.preflight.base import Check
from medflare.deployment.preflight.knowledge import knowledge
from medflare.knowledge.sketch_key import SketchKey
from medflare.recipes.job import Job

TERMS = "\n".join(
    f"[Term]\nid: T:{i}\nname: {name}\n" for i, name in enumerate(("asthma", "cough", "fever", "pneumonia"))
)
DDCS = Job(title="toy", method="fedmrg", aggregation={"rule": "ddcs", "rule_settings": {"draws": 3}})


def ask(*words: object) -> Any:
    return medflare("knowledge", *words, columns=None)


def hospital(folder: Path, facts: list[str], secret: str, **changed: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "terms.obo").write_text(TERMS, encoding="utf-8")
    (folder / "key").write_text(secret, encoding="ascii")
    (folder / "key").chmod(0o600)
    rows = [
        {"id": str(i), "source": said, "target": "None.", "split": "train"} for i, said in enumerate(facts)
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    (folder / "texts.jsonl").write_text(lines + "\n", encoding="utf-8")
    columns = {"source": "source", "target": "target"}
    settings: dict[str, Any] = {
        "name": folder.name,
        "cohort": {"format": "summaries_jsonl", "root": ".", "columns": columns, "max_skipped": 1},
        "knowledge": {"vocabulary": "terms.obo", "key": "key", "together": 0},
    }
    file = folder / "site.yaml"
    file.write_text(yaml.safe_dump(settings | changed), encoding="utf-8")
    return file


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Site files of two hospitals: of six and five triples, four are the same."""
    secret = bytes(range(32)).hex()  # of every twentieth key the interval does not hold the similarity
    common = "Asthma causes cough."
    return (
        hospital(tmp_path / "a", [common, "Pneumonia causes fever."], secret),
        hospital(tmp_path / "b", [common, "Pneumonia causes cough."], secret),
    )


def test_a_graph_is_shown_by_relation_with_its_key_and_size(two) -> None:
    output = ask("inspect", str(two[0]), "--examples", "5", "--json")
    assert output.exit_code == 0, output.output
    facts = json.loads(output.output)
    assert facts["relations"] == {"has": 4, "causes": 2}
    assert (facts["texts"], facts["triples"], facts["concepts"]) == (2, 6, 5)
    assert facts["sketch"]["bytes"] == 4122
    assert facts["sketch"]["key"] == key_of(two[0]).fingerprint("set", 1024).hex()[:8]
    asthma = {"head": "asthma", "relation": "causes", "tail": "cough", "confidence": 1.0}
    assert asthma in facts["examples"]
    assert len(facts["examples"]) == 5
    shown = ask("inspect", str(two[0]))
    assert "6 triples of 5 concepts from 2 texts" in shown.output
    assert "what would leave: 4,122 bytes" in shown.output


def key_of(file: Path) -> SketchKey:
    return SketchKey.read(file.parent / "key", "medflare")


def test_two_sketches_say_how_alike_the_graphs_are(two, tmp_path: Path) -> None:
    sketches = [tmp_path / "one.sketch", tmp_path / "two.sketch"]
    for file, sketch in zip(two, sketches, strict=True):
        assert ask("inspect", str(file), "--sketch", str(sketch)).exit_code == 0
    facts = json.loads(ask("compare", *map(str, sketches), "--json").output)
    assert facts["low"] < 4 / 7 < facts["high"]
    assert "95 %" in ask("compare", *map(str, sketches)).output
    missing = ask("compare", str(sketches[0]), str(tmp_path / "none"))
    assert missing.exit_code == 3
    (tmp_path / "key").write_text("x" * 40, encoding="ascii")
    assert ask("compare", str(sketches[0]), str(tmp_path / "key")).exit_code == 4


def test_a_new_key_is_readable_by_its_owner_alone_and_replaces_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "sketch.key"
    assert ask("key", str(file)).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text(encoding="ascii")
    assert SketchKey.read(file, "any").fingerprint("set", 8)
    assert ask("key", str(file)).exit_code == 2
    assert file.read_text(encoding="ascii") == secret


def test_a_site_without_the_block_is_told_so(tmp_path: Path) -> None:
    file = hospital(tmp_path / "a", ["Asthma causes cough."], "00" * 32, knowledge=None)
    output = ask("inspect", str(file))
    assert output.exit_code == 2
    assert "has no block `knowledge`" in output.output


def near_by(encoder: Path) -> dict[str, Any]:
    """A block `knowledge` that takes a graph made elsewhere, whose names an encoder brings to concepts."""
    given = {"vocabulary": "terms.obo", "key": "key", "extractor": "none", "triples": "made.tsv"}
    return given | {"nearest": 0.01, "nearest_by": "encoder", "encoder": str(encoder), "pooling": "cls"}


def test_inspect_shows_what_an_encoder_took_for_near(tiny_encoder: Path, tmp_path: Path) -> None:
    file = hospital(tmp_path / "a", ["Asthma causes cough."], "00" * 32, knowledge=near_by(tiny_encoder))
    lines = [f"{name}\tcauses\tnight sweats\n" for name in ("asthma", "cough")]
    (file.parent / "made.tsv").write_text("".join(lines), encoding="utf-8")
    facts = json.loads(ask("inspect", str(file), "--json").output)
    assert {found["tail"] for found in facts["examples"]} < {"asthma", "cough", "fever", "pneumonia"}
    assert all(found["confidence"] < 1 for found in facts["examples"])
    missing = hospital(tmp_path / "b", ["A."], "00" * 32, knowledge=near_by(tmp_path / "absent"))
    shown = ask("inspect", str(missing))
    assert (shown.exit_code, "knowledge.encoder: there is no folder" in shown.output) == (2, True)


# ---- preflight ---------------------------------------------------------------------------------------------


def checks(file: Path, job: Job | None = None) -> list[Check]:
    return knowledge(load_site(file, file.parent.name), job)


def test_preflight_reads_key_and_vocabulary(two) -> None:
    key, vocabulary = checks(two[0], DDCS)
    assert (key.outcome, vocabulary.outcome) == ("ok", "ok")
    assert key_of(two[0]).fingerprint("set", 1024).hex()[:8] in key.found
    assert "4 concepts" in vocabulary.found


def test_preflight_names_what_is_missing(two) -> None:
    (two[0].parent / "key").unlink()
    (two[0].parent / "terms.obo").write_text("nothing", encoding="utf-8")
    key, vocabulary = checks(two[0])
    assert (key.outcome, vocabulary.outcome) == ("problem", "problem")
    assert "medflare knowledge key" in key.remedy
    assert "terms.obo" in vocabulary.found


def test_preflight_warns_of_a_key_that_others_can_read(two) -> None:
    (two[0].parent / "key").chmod(0o644)
    key = checks(two[0])[0]
    assert (key.outcome, key.expected) == ("warning", "mode 600")


def test_preflight_names_graphs_that_are_not_there(tmp_path: Path) -> None:
    given = {"triples": "made.tsv", "extractor": "none", "key": "key"}
    file = hospital(tmp_path / "a", ["Asthma causes cough."], "00" * 32, knowledge=given)
    assert "made.tsv: not there" in checks(file)[-1].found


def test_preflight_opens_the_encoder_and_not_its_weights(tiny_encoder: Path, tmp_path: Path) -> None:
    encoder = shutil.copytree(tiny_encoder, tmp_path / "bert")
    (encoder / "model.safetensors").write_bytes(b"no weights")
    file = hospital(tmp_path / "a", ["Asthma causes cough."], "00" * 32, knowledge=near_by(encoder))
    (file.parent / "made.tsv").write_text("asthma\tcauses\tcough\n", encoding="utf-8")
    *_, found = checks(file)
    assert (found.outcome, "pooling cls" in found.found) == ("ok", True)
    (encoder / "tokenizer.json").unlink()
    *_, found = checks(file)
    assert (found.outcome, "has no tokenizer" in found.found) == ("problem", True)
    shutil.rmtree(encoder)
    assert [check.found for check in checks(file) if check.outcome == "problem"] == [
        f"knowledge.encoder: there is no folder '{encoder}'. Copy the encoder there."
    ]


def test_preflight_says_what_a_job_of_this_rule_will_miss(two, tmp_path: Path) -> None:
    file = hospital(tmp_path / "c", ["Asthma causes cough."], "00" * 32, knowledge=None)
    assert checks(file) == []
    assert checks(file, Job(title="toy", method="fedmrg")) == []
    assert checks(file, DDCS)[0].outcome == "warning"
    denied = {"policy": {"knowledge_sketch": "deny"}}
    file = hospital(tmp_path / "d", ["Asthma causes cough."], "00" * 32, **denied)
    assert checks(file, DDCS)[0].found == "policy.knowledge_sketch is deny"


def test_preflight_says_what_keeps_a_site_out_of_exact_comparison(
    two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregation = {"rule": "ddcs", "rule_settings": {"distances": "exact"}}
    exactly = Job(title="toy", method="question_answering", aggregation=aggregation)
    without = hospital(tmp_path / "c", ["Text."], "00" * 32, knowledge=None)
    assert checks(without, exactly)[0].outcome == "warning"
    monkeypatch.setattr(preflight_knowledge, "available", lambda: False)
    *_, denied, missing = checks(two[0], exactly)
    assert (denied.outcome, denied.found) == ("warning", "policy.knowledge_exact is deny (the default)")
    assert "policy.knowledge_exact: allow" in denied.remedy
    assert "pip install 'medflare[psi]'" in missing.remedy
    monkeypatch.setattr(preflight_knowledge, "available", lambda: True)
    allowed = {"policy": {"knowledge_exact": "allow", "knowledge_sketch": "deny"}}
    file = hospital(tmp_path / "d", ["Asthma causes cough."], "00" * 32, **allowed)
    assert checks(file, exactly)[-1].outcome == "ok"
    assert not [check for check in checks(file) if "exact" in check.found]
