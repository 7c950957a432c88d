# SPDX-License-Identifier: Apache-2.0
"""Every job folder is what its job.py says, and what it says can be run."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError, RunError
from medflare.data.settings.site import load_site_file
from medflare.learners.registry import get_method
from medflare.recipes import simulate
from medflare.recipes.job import CLIENT_CONFIG, SERVER_CONFIG, Job
from medflare.recipes.job_check import check_job
from medflare.recipes.job_main import arguments, main, wanted_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.local_baseline import job_alone
from medflare.recipes.overrides import override

JOBS = Path(__file__).parents[2] / "jobs"
FOLDERS = sorted(path.parent for path in JOBS.glob("*/job.py"))


def load(folder: Path) -> Job:
    spec = importlib.util.spec_from_file_location(f"job_{folder.name}", folder / "job.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.JOB


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_exported_folder_is_the_committed_one(folder: Path, tmp_path: Path) -> None:
    exported = load(folder).write(tmp_path / folder.name)
    files = sorted(p.relative_to(exported) for p in exported.rglob("*") if p.is_file())
    assert [(folder / name).read_text() for name in files] == [
        (exported / name).read_text() for name in files
    ]
    extra = {p.suffix for p in folder.rglob("*") if p.is_file() and p.relative_to(folder) not in files}
    assert extra <= {".py", ".md", ".yaml", ".pyc"}
    assert not (folder / "app/custom").exists()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_job_is_sound(folder: Path) -> None:
    check_job(load(folder))
    assert read_job(folder).files() == load(folder).files()


def test_export_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, str(JOBS / "fedmrg/job.py"), "--export", "--export-dir", str(tmp_path)]
    subprocess.run([*command, "--num_rounds", "7", "--n_clients", "2"], check=True, capture_output=True)
    server = json.loads((tmp_path / "fedmrg" / SERVER_CONFIG).read_text())
    assert server["workflows"][0]["args"]["num_rounds"] == 7
    assert json.loads((tmp_path / "fedmrg/meta.json").read_text())["min_clients"] == 2


def test_any_setting_can_be_changed_by_its_name() -> None:
    given = arguments(load(JOBS / "fedmrg")).parse_args(
        ["--set", "settings.model.lora.rank=4", "--set", "max_share=0.5", "--set", "worker=thread"]
    )
    job = wanted_job(load(JOBS / "fedmrg"), given)
    assert job.settings["model"]["lora"]["rank"] == 4
    assert job.controller["max_share"] == 0.5
    assert job.executor["worker"] == "thread"


def test_a_folder_with_parts_that_would_be_lost_is_refused(tmp_path: Path) -> None:
    folder = load(JOBS / "fedmrg").write(tmp_path / "fedmrg")
    client = json.loads((folder / CLIENT_CONFIG).read_text())
    client["task_result_filters"] = [{"tasks": ["fit"], "filters": [{"path": "x.Y", "args": {}}]}]
    (folder / CLIENT_CONFIG).write_text(json.dumps(client))
    with pytest.raises(ConfigError, match=r"holds parts that job\.py did not write"):
        read_job(folder)


@pytest.mark.parametrize(
    ("file", "place", "value", "text"),
    [
        (CLIENT_CONFIG, ("executors", 0, "executor", "args", "settings"), None, "settings is None, expected"),
        (
            CLIENT_CONFIG,
            ("executors", 0, "executor", "args", "method"),
            [],
            r"method is \[\], expected a text",
        ),
        (SERVER_CONFIG, ("components", 0, "args"), 5, "rule's args is 5, expected a block of settings"),
        ("meta.json", ("name",), ["a"], "name is"),
    ],
)
def test_a_damaged_folder_is_refused_in_words(
    tmp_path: Path, file: str, place: tuple[Any, ...], value: Any, text: str
) -> None:
    folder = load(JOBS / "fedmrg").write(tmp_path / "fedmrg")
    content = part = json.loads((folder / file).read_text())
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"is not a job folder of medflare .*{text}"):
        read_job(folder)


def test_an_unknown_setting_lists_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(load(JOBS / "fedmrg"), ["--export", "--set", "num_round=3"]) == ConfigError.exit_code
    assert "num_rounds" in capsys.readouterr().err


def test_a_dot_goes_into_nested_settings_of_the_run_and_of_the_method() -> None:
    """As docs/how-to/masking.md says of the bound."""
    job = load(JOBS / "fedmrg")
    private = {"settings.variant": "private", "settings.dp.noise_multiplier": 3.0}
    changed = override(job, {"protection": "masking", "protection_settings.bound": 32, **private})
    check_job(override(job, {"protection": "masking", "protection_settings.bound": 32}))
    assert changed.controller["protection_settings"] == {"bound": 32}
    assert changed.settings["dp"] == {"noise_multiplier": 3.0}
    empty = override(
        replace(job, controller={**job.controller, "protection_settings": None}),
        {"protection_settings.bits": 16},
    )
    assert empty.controller["protection_settings"] == {"bits": 16}
    for key in ("num_rounds.x", "settings.batch.x"):
        with pytest.raises(ConfigError, match="has no settings within it"):
            override(job, {key: 1})


WITHOUT_EFFECT = {
    "noise without masks": (
        {"protection_settings.dp.noise_multiplier": 1.0},
        "protection_settings.dp has no effect with protection 'none'",
    ),
    "noise under encryption": (
        {"protection": "he", "protection_settings.dp.noise_multiplier": 1.0},
        "protection_settings.dp has no effect with protection 'he'",
    ),
    "a bound without a sum": (
        {"protection_settings.bound": 32},
        "protection_settings.bound has no effect with protection 'none'",
    ),
    "a buffer that nobody fills": ({"buffer": 3}, "buffer has no effect with mode 'sync'"),
    "seconds of no clock": ({"simulated_deadline": 5}, "has no effect without latency_profiles"),
    "a site of half a profile": ({"latency_profiles": {"a": {"down": 1}}}, "site 'a': lacks seconds_per_ex"),
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_a_setting_without_effect_is_refused(case: str) -> None:
    """Who asks for noise in the sums must not send updates bare because a word is missing."""
    changes, message = WITHOUT_EFFECT[case]
    with pytest.raises(ConfigError, match=message):
        check_job(override(load(JOBS / "fedmrg"), changes))


CHANGES_WITHOUT_EFFECT = {
    "a share of data beside steps": (
        *("fedmrg", {"fraction": 0.5}),
        "fraction has no effect, as steps says how much a site trains",
    ),
    "passes beside steps": (
        *("fed_medlora", {"settings.local_epochs": 3, "steps": 5}),
        "settings.local_epochs has no effect, as steps says how much",
    ),
    "drafts that nobody makes": (
        *("fedmrg", {"evaluate_every": 0, "settings.eval_limit": 4}),
        "settings.eval_limit has no effect, as evaluate_every is 0",
    ),
    "a mix of one adapter": (
        *("fedmrg", {"settings.variant": "fed_lora", "settings.gamma_mix": 0.3}),
        "settings.gamma_mix has no effect, as settings.dual is false",
    ),
    "a bank that nobody reads": (
        *("fedmrg", {"settings.variant": "fed_lora", "settings.bank": "prototypes"}),
        "settings.bank has no effect, as settings.contrastive is false",
    ),
    "ranks of another adapter": (
        *("fed_medlora", {"settings.peft.method": "vera", "settings.lora.rank": 4}),
        "settings.lora.rank has no effect, as settings.peft.method is 'vera'",
    ),
    "a grid is not fitted": (
        *("fedtar", {"mixture.source": "global_fixed", "mixture.iterations": 9}),
        "settings.mixture.iterations has no effect, as settings.mixture.source is 'global_fixed'",
    ),
    "a beam alone": (
        *("fedvit_gpt2", {"settings.decoding.length_penalty": 2.0}),
        "settings.decoding.length_penalty has no effect, as settings.decoding.beams is 1",
    ),
    "a rule's setting": (
        *("fedtar", {"rule_settings.alpha": 0.5}),
        "rule_settings.alpha has no effect, as rule_settings.alpha_mode is 'sigmoid'",
    ),
    "a bound that only sites' factors have": (
        *("fed_medlora_plus", {"rule_settings.clip": 1.0}),
        "rule_settings.clip has no effect, as rule_settings.mode is 'server'",
    ),
}


@pytest.mark.parametrize("case", CHANGES_WITHOUT_EFFECT)
def test_a_change_that_changes_nothing_is_refused_and_the_reason_named(case: str) -> None:
    name, changes, message = CHANGES_WITHOUT_EFFECT[case]
    with pytest.raises(ConfigError, match=re.escape(message)):
        override(load(JOBS / name), changes)


def test_passes_and_exchanges_and_no_steps_belong_together() -> None:
    job = override(load(JOBS / "fed_medlora"), {"settings.local_epochs": 2, "exchanges": 4})
    assert job.controller["fraction"] == 0.5
    assert override(load(JOBS / "fedmrg"), {"steps": None, "fraction": 0.5}).controller["fraction"] == 0.5


LEFT_BEHIND = {
    "protection": (
        {"protection": "masking", "protection_settings": {"bound": 32.0}},
        {"protection": "none"},
        "protection_settings",
    ),
    "mode": ({"mode": "async", "buffer": 2}, {"mode": "sync"}, "buffer"),
    "clock": (
        {
            "latency_profiles": {"a": {"seconds_per_example": 1.0, "down": 1.0, "up": 1.0}},
            "simulated_deadline": 5.0,
        },
        {"latency_profiles": {}},
        "simulated_deadline",
    ),
}


@pytest.mark.parametrize("case", LEFT_BEHIND)
def test_what_a_change_leaves_without_effect_goes_with_it_unless_it_is_asked_for(case: str) -> None:
    """A hospital alone trains a masked, or asynchronous, job without masks and at its own pace."""
    own, changes, gone = LEFT_BEHIND[case]
    job = load(JOBS / "fedmrg")
    job = replace(job, controller={**job.controller, **own})
    check_job(job)
    changed = override(job, changes)
    check_job(changed)
    assert gone not in changed.controller
    check_job(job_alone(job))
    with pytest.raises(ConfigError, match="has no effect"):
        check_job(override(job, {**changes, gone: own[gone]}))


@pytest.mark.parametrize("protection", ["masking", "he"])
def test_updates_that_are_added_leave_a_jobs_own_codes_behind(protection: str) -> None:
    """The job sends four bits a number, which mean nothing once they are added."""
    job = load(JOBS / "fed_medlora")
    assert job.controller["uplink"] == "int4"
    protected = override(job, {"protection": protection})
    check_job(protected)
    assert "uplink" not in protected.controller
    with pytest.raises(ConfigError, match="uplink 'int4' sends codes that mean nothing once they are added"):
        check_job(override(job, {"protection": protection, "uplink": "int4"}))
    exact = load(JOBS / "fedtar")
    assert override(exact, {"protection": "masking"}).controller["uplink"] == "float32"
    assert override(job, {"protection": "none"}).controller["uplink"] == "int4"


@pytest.mark.parametrize("value", ["rot13", ["masking"], {"a": 1}, math.inf])
@pytest.mark.parametrize(
    "key",
    [
        *("protection", "min_responses", "uplink", "mode", "latency_profiles", "protection_settings"),
        *("settings.preset", "settings.variant", "settings.model", "settings.lr", "rule", "rule_settings"),
        *("exchanges", "workflow", "preset"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_words(key: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        check_job(override(load(JOBS / "fedmrg"), {key: value}))


def test_a_setting_that_was_renamed_is_named_with_its_new_name() -> None:
    with pytest.raises(ConfigError, match="'bench_rounds' is now called suspend_rounds"):
        override(load(JOBS / "fedmrg"), {"bench_rounds": 2})


def test_a_preset_takes_the_place_of_the_jobs_settings_and_options_come_on_top() -> None:
    job = load(JOBS / "fed_medlora")
    assert job.settings["optimiser"]["lr"] == 2e-3
    assert job.settings["lora"]["lora_alpha"] == 64
    chosen = {"preset": "instruct", "settings.optimiser.batch": 4, "num_rounds": 7}
    real = override(replace(job, settings={**job.settings, "variant": "freeze_a"}), chosen)
    settings = get_method("fed_medlora").resolve(real.settings)
    assert (settings.optimiser.lr, settings.optimiser.batch, settings.lora.lora_alpha) == (1e-3, 4, 32)
    assert settings.variant == "freeze_a", "which method it is does not change"
    assert (real.controller["num_rounds"], real.controller["deadline"]) == (4 * 7, 6 * 3600.0)
    paper = override(job, {"preset": "paper"})
    settings = get_method("fed_medlora").resolve(paper.settings)
    assert (settings.optimiser.lr, settings.optimiser.batch, settings.lora.dropout) == (2e-4, 4, 0.05)
    assert (paper.controller["num_rounds"], paper.controller["uplink"]) == (2, "float32")
    with pytest.raises(ConfigError, match="preset is 'fast'; fed_medlora has recommended, paper, instruct"):
        override(job, {"preset": "fast"})
    with pytest.raises(ConfigError, match="preset is '\\['paper'\\]'"):
        override(job, {"preset": ["paper"]})


PAPER: dict[str, dict[str, object]] = {
    "fedmrg": {
        "settings": {
            "batch": 16,
            "lr": 5e-5,
            "weight_decay": 0.05,
            "tau": 0.07,
            "gamma_mix": 0.5,
            "bank": "raw",
        },
        "controller": {"num_rounds": 1000, "fraction": 0.02, "steps": None, "uplink": "float32"},
        "rule": {"rule": "weighted_mean", "rule_settings": {"weighting": "examples"}},
    },
    "fedtar": {
        "settings": {"lr": 1e-5, "schedule": "constant", "clip": None, "weight_decay": 0.01},
        "controller": {"steps": None, "downlink": "float32"},
        "rule": {
            "rule": "temporal",
            "rule_settings": {"alpha_mode": "softmax", "lr": 1e-4, "visits": 4, "weighting": "examples"},
        },
    },
    "fed_medlora": {
        "settings": {"local_epochs": 2, "format": "html"},
        "controller": {"num_rounds": 2, "uplink": "float32", "downlink": "float32"},
        "rule": {"rule": "weighted_mean", "rule_settings": {"weighting": "examples"}},
    },
    "fedvit_gpt2_l_fedavg": {
        "settings": {"local_epochs": 3, "augment": False},
        "controller": {"uplink": "float32"},
        "rule": {
            "rule": "l_fedavg",
            "rule_settings": {"omega": 0.5, "loss_weight": "raw", "loss_source": "client"},
        },
    },
    "ddcs_qa": {
        "settings": {"local_epochs": 1},
        "controller": {"latency_profiles": {}, "uplink": "float32"},
        "rule": {"rule": "ddcs", "rule_settings": {"draws": 5, "most_variance": None, "age_bonus": 0.0}},
    },
    "ddcs_summary": {
        "settings": {"local_epochs": 1},
        "controller": {"latency_profiles": {}},
        "rule": {"rule": "ddcs", "rule_settings": {"draws": 5, "most_variance": None, "age_bonus": 0.0}},
    },
}
"""Job -> the values of its paper; what a job keeps of its own (`kept_by_presets`) stands there too."""


@pytest.mark.parametrize("name", PAPER)
def test_preset_paper_is_the_papers_whole_job(name: str) -> None:
    """Rule, weights, rates and transport; what a paper leaves open keeps the job's value."""
    job, wanted = override(load(JOBS / name), {"preset": "paper"}), PAPER[name]
    settings = get_method(job.method).resolve(job.settings).model_dump()
    assert {key: settings[key] for key in wanted["settings"]} == wanted["settings"]
    assert {key: job.controller.get(key) for key in wanted["controller"]} == wanted["controller"]
    rule = wanted["rule"]
    assert job.aggregation["rule"] == rule["rule"]
    made = make_rule(rule["rule"], job.aggregation["rule_settings"]).settings.model_dump()
    assert {key: made[key] for key in rule["rule_settings"]} == rule["rule_settings"]
    check_job(job)


@pytest.mark.parametrize("preset", ["recommended", "paper", "instruct"])
@pytest.mark.parametrize("name", sorted(folder.name for folder in JOBS.iterdir() if folder.is_dir()))
def test_a_preset_keeps_the_rule_that_makes_a_job_what_it_is(name: str, preset: str) -> None:
    """Krum, influence weights, temporal coefficients, drawn sites; `instruct` of `fed_medlora` alone adds
    momentum to its plain mean."""
    job = load(JOBS / name)
    if preset not in get_method(job.method).presets:
        pytest.skip(f"{job.method} has no preset {preset}")
    changed = override(job, {"preset": preset})
    momentum = (name, preset) == ("fed_medlora", "instruct")
    assert changed.aggregation["rule"] == ("fedavgm" if momentum else job.aggregation["rule"])
    check_job(changed)


def test_a_rule_that_is_no_name_is_refused_with_a_preset_too() -> None:
    with pytest.raises(ConfigError, match=r"rule is \['median'\]; expected one of bulyan"):
        check_job(override(load(JOBS / "fed_medlora"), {"preset": "instruct", "rule": ["median"]}))


def test_a_preset_gives_the_papers_values_of_a_rule_that_was_asked_for() -> None:
    job = override(load(JOBS / "fedvit_gpt2"), {"preset": "paper", "rule": "l_fedavg"})
    made = make_rule("l_fedavg", job.aggregation["rule_settings"]).settings.model_dump()
    assert (made["loss_weight"], made["loss_source"]) == ("raw", "client")


CHOSEN: tuple[tuple[dict[str, object], str], ...] = (
    ({}, "fedavgm"),
    ({"num_rounds": 2}, "fedavgm"),
    ({"protection": "masking", "uplink": "bfloat16"}, "fedavgm"),
    ({"protection": "he", "uplink": "bfloat16"}, "weighted_mean"),
    ({"rule": "weighted_mean"}, "weighted_mean"),
    ({"rule": "median"}, "median"),
    ({"rule_settings.weighting": "uniform"}, "weighted_mean"),
    ({"steps": 4}, "weighted_mean"),
    ({"fraction": 0.5}, "weighted_mean"),
    ({"mode": "async"}, "weighted_mean"),
)
"""Changes beside `preset=instruct` of `fed_medlora`, and the rule that comes out."""


@pytest.mark.parametrize(("chosen", "rule"), CHOSEN, ids=lambda value: str(value))
def test_momentum_comes_with_instruct_where_nobody_chose_rule_or_schedule(
    chosen: dict[str, object], rule: str
) -> None:
    job = override(load(JOBS / "fed_medlora"), {"preset": "instruct", **chosen})
    assert job.aggregation["rule"] == rule
    rounds = chosen.get("num_rounds", 3)
    if rule == "fedavgm":
        assert job.aggregation["rule_settings"] == {"beta1": 0.6}
        assert (job.controller["num_rounds"], job.controller["fraction"]) == (4 * rounds, 0.25)
        assert job.controller["evaluate_every"] == 4, "validation after as much training as before"
    else:
        assert job.controller["num_rounds"] == rounds
    check_job(job)


def test_exchanges_divide_a_rounds_passes() -> None:
    job = load(JOBS / "fed_medlora")
    two = override(job, {"exchanges": 4, "settings.local_epochs": 2, "num_rounds": 5})
    assert (two.controller["num_rounds"], two.controller["fraction"]) == (20, 0.5)
    part = override(job, {"exchanges": 2, "fraction": 0.5})
    assert (part.controller["num_rounds"], part.controller["fraction"]) == (6, 0.25)
    assert override(job, {"exchanges": 1}) == job
    assert override(job, {"preset": "instruct", "exchanges": 2}).controller["num_rounds"] == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exchanges": 0}, "exchanges is 0; expected a whole number from 1"),
        ({"exchanges": True}, "exchanges is True"),
        ({"exchanges": "4x"}, "exchanges is '4x'"),
        ({"exchanges": 2, "steps": 8}, "here steps says how much"),
        ({"exchanges": 2, "mode": "async"}, "here mode says how much"),
        ({"exchanges": 2, "settings.local_epochs": 3}, "a round has 3 passes.*Expected exchanges from 3"),
    ],
)
def test_exchanges_that_cannot_divide_a_round_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        override(load(JOBS / "fed_medlora"), changes)
    with pytest.raises(ConfigError, match="here workflow says how much"):
        override(load(JOBS / "fedtar"), {"exchanges": 2, "steps": None})


def test_the_quorum_is_the_jobs_min_clients() -> None:
    job = override(load(JOBS / "fedmrg"), {"min_responses": 2})
    assert job.files()["meta.json"]["min_clients"] == 2


def test_a_workspace_gets_absolute_folders_and_the_class_list(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    block = {"cohort": {"format": "manifest", "root": "data/one", "columns": {"root": "x"}}}
    (tmp_path / "a/site.yaml").write_text(yaml.safe_dump({"sites": {"site-1": block}}))
    simulate.prepare_workspace(tmp_path / "ws", tmp_path / "a/site.yaml")
    assert list(simulate.described_sites(tmp_path / "ws", None)) == ["site-1"]
    written = yaml.safe_load((tmp_path / "ws/local/site.yaml").read_text())["sites"]["site-1"]["cohort"]
    assert written["root"] == str(tmp_path / "a/data/one")
    assert written["columns"] == {"root": "x"}
    assert (tmp_path / "ws/local/resources.json").exists()


def test_every_path_of_a_site_file_means_the_same_in_the_workspace(tmp_path: Path) -> None:
    """What is a path its field says, not its name: labels may be called like a setting."""
    (tmp_path / "a").mkdir()
    cohort = {
        "format": "mimic_cxr",
        "root": "data",
        "reports": "reports",
        "demographics": "patients.csv",
        "chexbert_folder": "chexbert",
        "deidentify": "replace",
        "deidentify_key": "secret.key",
    }
    notes = {
        "format": "brat",
        "root": "notes",
        "label_map": {"state": "problem", "root": "drug", "key": None},
    }
    block = {
        "cohort": [cohort],
        "validation": notes,
        "backbone": {"folder": "models/llama"},
        "state": "${HOME}/state",
        "encoder_weights": "~/weights.pt",
        "scorers": {"bertscore": "scorers/bert"},
    }
    given, copied = tmp_path / "a/site.yaml", tmp_path / "ws/local/site.yaml"
    given.write_text(yaml.safe_dump({"sites": {"site-1": block}}))
    simulate.prepare_workspace(tmp_path / "ws", given)
    assert load_site_file(copied) == load_site_file(given)
    written = yaml.safe_load(copied.read_text())["sites"]["site-1"]
    assert written["cohort"][0]["deidentify_key"] == str(tmp_path / "a/secret.key")
    assert written["scorers"] == {"bertscore": str(tmp_path / "a/scorers/bert")}
    assert written["validation"]["label_map"] == notes["label_map"]
    assert (written["state"], written["encoder_weights"]) == ("${HOME}/state", "~/weights.pt")
    given.write_text(yaml.safe_dump({"name": "site-1", **block}))
    simulate.prepare_workspace(tmp_path / "ws", given)
    assert load_site_file(copied) == load_site_file(given)


def test_the_template_describes_the_sites_of_the_jobs() -> None:
    template = JOBS.parent / "workspace_templates/simulator/local/site.yaml"
    sites = load_site_file(template)
    assert sorted(sites) == ["site-1", "site-2", "site-3"]
    assert not any(line.strip().startswith("root: /") for line in template.read_text().splitlines())


def test_the_outcome_is_what_was_made(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no round ran"):
        simulate.judge(tmp_path)
