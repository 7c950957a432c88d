# SPDX-License-Identifier: Apache-2.0
"""Optional scorers: run with local weights, otherwise one clear line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from medflare.core.errors import ConfigError
from medflare.data.settings.site import SCORERS as SITE_SCORERS
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.scorers import SCORERS, optional_statistics

REFERENCES, HYPOTHESES = (
    ["no effusion", "the heart is big", "clear lungs"],
    ["the heart is big", "", "clear lungs"],
)


@pytest.mark.parametrize("name", SCORERS)
def test_without_weights_a_scorer_is_skipped_in_one_line(name: str, tmp_path: Path) -> None:
    assert optional_statistics(REFERENCES, HYPOTHESES, {})[1][name].endswith(f"(--scorer {name}=<folder>)")
    for folder, words in ((tmp_path / "absent", "there is no"), (tmp_path, "lacks")):
        line = optional_statistics(REFERENCES, HYPOTHESES, {name: folder})[1][name]
        assert words in line
        assert "\n" not in line


def test_an_unknown_scorer_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"no such scorer bleurt.*bertscore"):
        optional_statistics(REFERENCES, HYPOTHESES, {"bleurt": "x"})


def test_a_scorer_that_breaks_is_skipped_and_says_why(tmp_path: Path) -> None:
    for name in SCORERS["bertscore"].needs:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    found, skipped = optional_statistics(REFERENCES, HYPOTHESES, {"bertscore": tmp_path})
    assert found == {}
    assert skipped["bertscore"].startswith("skipped: bertscore")


def test_what_a_foreign_scorer_says_stays_here(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message may quote a report, and the reason of a final test goes to the server."""

    def broken(references: list[str], hypotheses: list[str], folder: Path) -> None:
        raise ValueError(f"cannot parse {references[1]!r}")

    monkeypatch.setitem(SCORERS, "bertscore", replace(SCORERS["bertscore"], score=broken))
    skipped = optional_statistics(REFERENCES, HYPOTHESES, {"bertscore": tiny_encoder})[1]
    assert skipped["bertscore"] == "skipped: bertscore failed with ValueError"


def test_site_yaml_knows_the_scorers(tmp_path: Path) -> None:
    assert set(SITE_SCORERS) == set(SCORERS)
    with pytest.raises(ValidationError, match=r"no such scorer bleurt; there are: bertscore"):
        SiteConfig.model_validate({"cohort": {"format": "manifest", "root": "."}, "scorers": {"bleurt": "x"}})


def test_bertscore_is_measured_with_the_weights_of_a_local_folder(tiny_encoder: Path) -> None:
    found, skipped = optional_statistics(REFERENCES, HYPOTHESES, {"bertscore": tiny_encoder})
    assert "bertscore" not in skipped, skipped
    assert {"bertscore_precision", "bertscore_recall", "bertscore_f1"} <= set(found)
    values = found["bertscore_f1"].sums[:, 0]
    assert values[2] == pytest.approx(1, abs=1e-4)
    assert values[1] == 0
    assert values[0] < 0.99


def test_pickled_weights_are_not_loaded(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_encoder, tmp_path / "bert")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    found, skipped = optional_statistics(REFERENCES, HYPOTHESES, {"bertscore": folder})
    assert found == {}
    assert "scorers.bertscore" in skipped["bertscore"]
    assert "Pickled weights (.bin) are not loaded" in skipped["bertscore"]


def test_a_decoder_scores_no_words_that_come_before_the_others(tiny_backbone: Path) -> None:
    found, skipped = optional_statistics(REFERENCES, HYPOTHESES, {"bertscore": tiny_backbone})
    assert found == {}
    assert "holds a llama, which does not see both sides of a word" in skipped["bertscore"]
