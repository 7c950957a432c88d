# SPDX-License-Identifier: Apache-2.0
"""`medflare run study.yaml`, errors as JSON, and completion in a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import medflare, refusal
from medflare.core.errors import RunError
from medflare.recipes import simulate

FILE = """
job: jobs/mine
site_file: site.yaml
sites: [a, b]
unseen: [c]
rounds: 7
set: {rule: fedprox, settings.variant: fed_lora}
workspace: out
page: false
"""
SITES = "sites: {a: {cohort: {format: manifest, root: x}}, b: {cohort: {format: manifest, root: x}}, " + (
    "c: {cohort: {format: manifest, root: x}}}\n"
)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder with a run's file and the site.yaml that it names."""
    (tmp_path / "study.yaml").write_text(FILE)
    (tmp_path / "site.yaml").write_text(SITES)
    return tmp_path / "study.yaml"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Returns what `medflare run` with some words asks the simulator for."""

    def ask(*words: object) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def simulator(job: Path, workspace: Path, sites: list[str], site_file: Path, **named: Any) -> None:
            seen.update(job=job, workspace=workspace, sites=sites, site_file=site_file, **named)
            raise RunError("stopped by the test")

        monkeypatch.setattr(simulate, "run_simulator", simulator)
        assert "stopped by the test" in refusal(RunError.exit_code, "run", *words)
        return seen

    return ask


def test_a_file_holds_the_options_of_a_run(study: Path, asked: Callable[..., dict[str, Any]]) -> None:
    base, seen = study.parent, asked(study)
    assert (seen["job"], seen["site_file"]) == (base / "jobs/mine", base / "site.yaml")
    assert seen["workspace"] == base / "out"
    assert (seen["sites"], seen["unseen"]) == (["a", "b"], ["c"])
    assert seen["changes"] == {"rule": "fedprox", "settings.variant": "fed_lora", "num_rounds": 7}


def test_the_command_line_counts_before_the_file(
    study: Path, asked: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    seen = asked(study, "--rounds", 2, "--sites", "b", "--set", "rule=krum", "-w", tmp_path / "x", "--canary")
    assert seen["sites"] == ["b"]
    expected = {"rule": "krum", "settings.variant": "fed_lora", "num_rounds": 2, "canary": True}
    assert seen["changes"] == expected
    assert asked(study, "--set", "num_rounds=3")["changes"]["num_rounds"] == 3
    assert seen["workspace"] == (tmp_path / "x").resolve()


def test_rounds_that_are_said_twice_must_be_the_same(
    study: Path, asked: Callable[..., dict[str, Any]]
) -> None:
    """Before, the option was ignored without a word."""
    twice = "num_rounds is 2 by its option and 3 by --set. Leave one of the two out."
    assert twice in refusal(2, "run", study, "--rounds", 2, "--set", "num_rounds=3")
    assert twice in refusal(2, "job", "submit", "x", "--kit", "k", "--rounds", 2, "--set", "num_rounds=3")
    said = refusal(2, "run", study, "--canary", "--set", "canary=false")
    assert "canary is True by its option and False by --set" in said
    assert asked(study, "--rounds", 2, "--set", "num_rounds=2")["changes"]["num_rounds"] == 2
    study.write_text(FILE.replace("set: {", "set: {num_rounds: 3, "))
    assert "num_rounds is 7 by its option and 3 by --set" in refusal(2, "run", study)


def test_a_job_of_medflare_is_named_and_one_beside_the_file_counts_before_it(
    study: Path, asked: Callable[..., dict[str, Any]]
) -> None:
    study.write_text(FILE.replace("jobs/mine", "fedmrg"))
    assert asked(study)["job"] == Path("fedmrg")
    (study.parent / "fedmrg").mkdir()
    assert asked(study)["job"] == study.parent / "fedmrg"


def test_settings_may_stand_nested_and_change_a_block_without_taking_its_place(
    study: Path, asked: Callable[..., dict[str, Any]]
) -> None:
    nested = """set:
  settings: {lr: 1e-3, lora: {rank: 4, targets: [q_proj]}, teach: {}}
  protection_settings: {dp: {clip_norm: 2e-1}}
  settings.optimiser: {batch: 2}
  latency_profiles: {a: {down: 1}}
  fraction: 5e-1
"""
    study.write_text(FILE.replace("set: {rule: fedprox, settings.variant: fed_lora}\n", nested))
    assert asked(study)["changes"] == {
        "num_rounds": 7,
        "settings.lr": 1e-3,
        "settings.lora.rank": 4,
        "settings.lora.targets": ["q_proj"],
        "settings.teach": {},
        "protection_settings.dp.clip_norm": 0.2,
        "settings.optimiser": {"batch": 2},
        "latency_profiles": {"a": {"down": 1}},
        "fraction": 0.5,
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("round: 3", "Did you mean 'rounds'?"),
        ("rounds: 0", "rounds"),
        ("sites: a", "sites"),
        ("set: fast", "set"),
    ],
)
def test_a_wrong_key_or_value_is_named_before_anything_starts(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "study.yaml").write_text(f"job: jobs/mine\n{line}\n")
    said = refusal(2, "run", tmp_path / "study.yaml")
    assert "study.yaml" in said
    assert message in said


def test_an_error_is_json_on_standard_output_and_a_sentence_on_standard_error(tmp_path: Path) -> None:
    result = medflare("run", tmp_path / "none.yaml", "--json")
    error = json.loads(result.stdout)["error"]
    assert (error["name"], error["exit_code"]) == ("ConfigError", result.exit_code)
    assert error["text"] in " ".join(result.stderr.split())
    assert medflare("run", tmp_path / "none.yaml").stdout == ""


def test_a_shell_completes_commands() -> None:
    environment = os.environ | {
        "_MEDFLARE_COMPLETE": "complete_bash",
        "COMP_WORDS": "medflare cohort in",
        "COMP_CWORD": "2",
    }
    code = "from medflare.cli.main import app; app(prog_name='medflare')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == ["init", "inspect"]
