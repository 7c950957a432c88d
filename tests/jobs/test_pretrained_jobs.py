# SPDX-License-Identifier: Apache-2.0
"""Every job that trains a language model takes a pretrained one: settings for it, chosen without being asked.

`make test-real` runs all of them in the simulator with SmolLM2 (MEDFLARE_REAL_MODEL); everything else trains
one step at one site with a small model of its kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated_jobs import JOBS, MIXTURE, VISITS, write_notes, write_questions, write_visits
from transformers import BertConfig, BertModel

from command_line import facts
from gguf_builder import write_gguf
from medflare.core.model_folders import stored_model
from medflare.core.plan import RoundPlan
from medflare.data.settings.site import BackboneConfig, SiteConfig, load_site_file
from medflare.federation.server.preparation import rate_warning
from medflare.learners.registry import build_learner, get_method
from medflare.models.backbone import EMBEDDED_NAMES
from medflare.models.encoder_folder import NEW
from medflare.recipes import simulate
from medflare.recipes.job import Job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override
from medflare.recipes.preset_choice import choose_preset, with_preset
from medflare.synthetic.knowledge import write_summaries_demo

REAL = os.environ.get("MEDFLARE_REAL_MODEL", "")
ENCODER = {"name": "small", "weights": "none", "image_size": 32, "token_grid": 2}
TEXT: dict[str, Any] = {"settings.max_tokens": 1024, "settings.optimiser.batch": 2}
IMAGES: dict[str, Any] = {"settings.model.encoder": ENCODER, "settings.batch": 2}


def write_summaries(folder: Path) -> None:
    write_summaries_demo(folder, 3, reports=12)


COHORTS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "fed_medlora": (write_notes, TEXT),
    "fed_medlora_plus": (write_notes, TEXT),
    "ddcs_qa": (write_questions, TEXT),
    "ddcs_summary": (write_summaries, TEXT),
    "fedmrg": (write_visits, IMAGES),
    "fedtar": (write_visits, IMAGES),
}
"""Job -> what writes its hospitals, and what makes a step small."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a pretrained model of this machine."""
    if REAL:
        return REAL
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MEDFLARE_MODELS", str(folder))
        facts("models", "add", write_gguf(folder / "tiny.gguf"))
        return str(stored_model("tiny"))


def hospitals(job: str, model: str, folder: Path) -> tuple[Path, dict[str, SiteConfig]]:
    """Write a job's hospitals, each with the pretrained model, and return their site.yaml and settings."""
    COHORTS[job][0](folder)
    file = folder / "site.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    for site in document["sites"].values():
        site["backbone"] = {"name": model} if REAL else {"folder": model, "precision": "fp32"}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file, load_site_file(file)


@pytest.mark.skipif(bool(REAL), reason="the simulator does it with the real model")
@pytest.mark.parametrize("name", COHORTS)
def test_a_pretrained_backbone_gets_the_settings_for_it_and_trains(
    name: str, model: str, tmp_path: Path
) -> None:
    _, sites = hospitals(name, model, tmp_path)
    job, told = read_job(JOBS / name), list[dict[str, Any]]()
    variant = {"settings.variant": "pooled_baseline"} if name == "fedtar" else {}  # needs no other site
    wanted = with_preset(job, {**COHORTS[name][1], **variant}, sites, told.append)
    assert [event["phase"] for event in told] == ["preset"]
    assert ("Each round becomes 4" in told[0]["reason"]) == (name == "fed_medlora")
    changed = override(job, wanted)
    settings = get_method(job.method).resolve(changed.settings)
    rate = 1e-3 if name.startswith("fed_medlora") else 5e-4
    assert (settings.preset, settings.learning_rate) == ("instruct", rate)
    assert changed.controller["deadline"] > 3600, "a round of a pretrained model takes longer"
    site = sites["site-1"]
    learner = build_learner(job.method, changed.settings, site, 0)
    learner.load_shared(learner.initial_shared())
    update = learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    assert update.metrics["steps"] == 1
    assert any(bool(change.any()) for change in update.delta.values())


@pytest.mark.skipif(not REAL, reason="make test-real does it with a real model")
@pytest.mark.simulator
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COHORTS)
def test_every_job_runs_with_a_real_model(name: str, model: str, tmp_path: Path, without_java: None) -> None:
    file, _ = hospitals(name, model, tmp_path)
    few: dict[str, Any] = {"steps": 2, "final_limit": 1, "settings.eval_limit": 0}
    if name in ("fedmrg", "fedtar"):
        few["settings.model.encoder"] = ENCODER
    if name == "fedtar":  # for as few patients as there are
        few |= {"mixture": MIXTURE, "settings.mixture": MIXTURE}
        few |= dict.fromkeys(("visits", "settings.visits", "rule_settings.visits"), VISITS)
    record = simulate.run_simulator(
        JOBS / name, tmp_path / "ws", ("site-1", "site-2"), file, rounds=1, changes=few, timeout=3000
    )
    assert record.status == "completed"
    assert record.configuration["settings"]["preset"] == "instruct"
    assert all(site.precision for site in record.sites.values())


def job_and_sites(model: str, tmp_path: Path) -> tuple[Job, dict[str, SiteConfig]]:
    return read_job(JOBS / "ddcs_qa"), hospitals("ddcs_qa", model, tmp_path)[1]


def test_whoever_asks_for_a_preset_or_a_rate_of_a_pretrained_model_is_left_alone(
    model: str, tmp_path: Path
) -> None:
    job, sites = job_and_sites(model, tmp_path)
    assert choose_preset(job, {"preset": "paper"}, sites) is None
    assert choose_preset(override(job, {"settings.optimiser.lr": 3e-4}), {}, sites) is None
    kept = override(job, with_preset(job, {"preset": "job"}, sites, None))
    assert kept.settings == job.settings
    none = BackboneConfig()
    embedded = {name: site.model_copy(update={"backbone": none}) for name, site in sites.items()}
    assert choose_preset(job, {}, embedded) is None


def test_a_server_that_knows_no_site_yaml_warns_of_the_embedded_models_rate(
    model: str, tmp_path: Path
) -> None:
    job, _ = job_and_sites(model, tmp_path)

    def declared(name: str) -> dict[str, Any]:
        return {"a": {"describe": {"backbone": {"name": name, "fingerprint": "0"}}}}

    warning = rate_warning(job.method, job.settings, declared("smollm2"))
    assert "the learning rate is 0.005" in warning
    assert "preset=instruct" in warning
    assert rate_warning(job.method, job.settings, declared(EMBEDDED_NAMES["notes_decoder"])) == ""
    assert rate_warning(job.method, {"preset": "instruct"}, declared("smollm2")) == ""


def test_a_pretrained_encoder_gets_its_own_rate_and_a_new_one_keeps_the_jobs(tmp_path: Path) -> None:
    """The job's is for random weights, at which a pretrained encoder forgets what it knows."""
    BertModel(
        BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path / "encoder")
    job, told = read_job(JOBS / "token_classification"), list[dict[str, Any]]()
    new = SiteConfig.model_validate({"name": "a", "cohort": {"format": "brat", "root": tmp_path}})
    own = new.model_copy(update={"backbone": BackboneConfig(folder=tmp_path / "encoder")})
    assert with_preset(job, {}, {"a": new}, told.append) == {}
    changed = override(job, with_preset(job, {}, {"a": new, "b": own}, told.append))
    assert "the job's own rate 0.002 is for a new encoder" in told[0]["reason"]
    settings = get_method(job.method).resolve(changed.settings)
    assert (settings.learning_rate, settings.passes) == (2e-4, 10)
    assert changed.controller["deadline"] > 3600

    def declared(name: str) -> dict[str, Any]:
        return {"a": {"describe": {"backbone": {"name": name, "fingerprint": "0"}}}}

    assert rate_warning(job.method, job.settings, declared(NEW)) == ""
    assert "preset=recommended" in rate_warning(job.method, job.settings, declared("Bio_ClinicalBERT"))


def test_a_model_of_the_papers_size_gets_the_papers_settings() -> None:
    assert get_method("fed_medlora").preset_for(8_030_261_248) == "paper"
    assert get_method("fedmrg").preset_for(6_738_415_616) == "recommended", "paper sends features of images"
    assert get_method("fedvit_gpt2").preset_for(10) is None
