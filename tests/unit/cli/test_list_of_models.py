# SPDX-License-Identifier: Apache-2.0
"""`medflare models list`: a damaged record hides no other model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import answer, facts, medflare, refusal
from gguf_builder import write_gguf


def test_a_damaged_record_is_named_after_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDFLARE_MODELS", str(tmp_path / "models"))
    assert "No model in" in answer("models", "list")
    file = write_gguf(tmp_path / "tiny.gguf")
    for name in ("one", "two"):
        answer("models", "add", file, "--name", name)
    assert [item["name"] for item in facts("models", "list")] == ["one", "two"]
    (tmp_path / "models" / "one" / "medflare_model.json").write_text("{")
    for words in ((), ("--json",)):
        shown = medflare("models", "list", *words)
        assert shown.exit_code == 7
        assert "two" in shown.stdout
        assert "one/medflare_model.json: no readable record" in " ".join(shown.stderr.split())
    assert [item["name"] for item in json.loads(shown.stdout)] == ["two"]
    (tmp_path / "models" / "two" / "medflare_model.json").write_text("[]")
    assert "no readable record" in refusal(2, "models", "list")
