# SPDX-License-Identifier: Apache-2.0
"""Each check of `medflare preflight` of what the hospital brings: data, labels, base model, disk, policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from preflight_kit import says

from medflare.data.cohort_summary import summarise
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import SiteConfig
from medflare.deployment.preflight import site_checks
from medflare.deployment.preflight.base import Check
from medflare.egress.policy import Policy
from medflare.learners.footprint import Footprint
from medflare.learners.registry import METHODS, task_of
from medflare.recipes.job import Job
from medflare.worker.memory_check import free_memory


def site(root: Path, reader: str = "manifest", device: str = "auto", **more: Any) -> SiteConfig:
    """Settings of a site; `backbone` is a block of its own, all else is of the cohort."""
    blocks = {"backbone": more.pop("backbone")} if "backbone" in more else {}
    cohort = {"format": reader, "root": str(root), **more}
    return SiteConfig.model_validate({"cohort": cohort, "device": device, **blocks})


def test_a_cohort_is_counted_and_its_labels_named(small_hospital: Path) -> None:
    read, opened = site_checks.open_cohort(site(small_hospital), "fedmrg")
    says(read, "ok", "60 patients, 60 studies (train ")
    says(site_checks.labels(summarise(opened)), "ok", "conditions occur: ")


@pytest.mark.parametrize("method", METHODS)
def test_a_cohort_is_counted_for_every_method(method: str, small_hospital: Path) -> None:
    """Whatever a method reads; where that is another kind of record, the check says which."""
    read, _ = site_checks.open_cohort(site(small_hospital, visits={}), method)
    if task_of(method).reads in ("studies", "visits"):
        says(read, "ok", "60 patients, 60 studies (train ")
    else:
        says(read, "problem", "(train 0, val 0, test 0)", "to train on")


def test_a_site_without_visits_is_told_what_a_method_of_visits_needs(small_hospital: Path) -> None:
    read, _ = site_checks.open_cohort(site(small_hospital), "fedtar")
    says(read, "problem", "needs patients with visits", "Add 'visits: {}' to the cohort")


def test_questions_are_counted_without_a_method_too(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "options": ["x", "y"], "answer": "AB"[i % 2]} for i in range(40)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    read, opened = site_checks.open_cohort(site(tmp_path, "questions_jsonl"), None)
    says(read, "ok", "40 questions (train ")
    says(site_checks.labels(summarise(opened)), "ok", "answers A 20, B 20")


@pytest.mark.parametrize(
    ("summary", "outcome", "found"),
    [
        ({"labels": {"edema": 0, "pneumonia": 0}}, "problem", "no study has a positive condition"),
        ({"labels": {"edema": 3, "pneumonia": 0}}, "warning", "1 of 2 conditions occur: edema 3"),
        ({"entities": {}, "relations": {}}, "problem", "no note has an entity"),
        ({"entities": {"problem": 4}, "relations": {"severity": 2}}, "ok", "problem 4; 2 relations"),
        ({"asked": {"answers": {"A": 9}, "groups": {}}}, "problem", "every answer is A 9"),
        ({"asked": {"answers": {"A": 4, "B": 5}, "groups": {"none": 9}}}, "ok", "answers A 4, B 5; 1 groups"),
        (
            {"summarised": {"target_words": {"median": 8.0}, "masked": 3}, "summaries": 7},
            "ok",
            "8 words in the median target, 3 of 7 with de-identification marks",
        ),
    ],
)
def test_labels_that_teach_nothing_are_told(summary: Any, outcome: str, found: str) -> None:
    counts = {name: {"positive": n} for name, n in summary.get("labels", {}).items()}
    facts = {**summary, "labels": counts, "notes": int("entities" in summary)}
    says(site_checks.labels(facts), outcome, found)


FEDMRG = Job(title="fedmrg", method="fedmrg")
NEED = Footprint(frozen=10**8, learning=10**8, exchange=10**8, activations=10**8, runtime=6 * 10**8)
ONE_GB = "about 1.0 GB (frozen weights 0.10, learning weights and optimiser 0.10, exchange 0.10"
NEW_ENCODER = "no backbone.folder: a new encoder"
ALL_TRAIN = {"split": {"train": 1, "val": 0, "test": 0}, "columns": {"split": None}}
"""A source with a split of its own keeps it."""


def cohort(root: Path, method: str | None, **more: Any) -> Check:
    return site_checks.open_cohort(site(root, **more), method)[0]


def backbone(root: Path, folder: str) -> Check:
    return site_checks.backbone(site(root, backbone={"folder": str(root / folder)}), None)


def memory(root: Path, free: int, patch: pytest.MonkeyPatch) -> Check:
    patch.setattr(site_checks, "footprint", lambda *given: NEED)
    patch.setattr(site_checks, "free_memory", lambda device, gpus: (free, "CPU"))
    check = site_checks.memory(site(root), FEDMRG)
    assert "GB free on the CPU" in check.found
    assert check.outcome == "ok" or "an estimate, not a measurement" in check.expected
    return check


def disk(root: Path, free: int, patch: pytest.MonkeyPatch) -> Check:
    patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    (check,) = site_checks.disk([root / "not/yet/there", root])
    assert check.found.endswith(f"GB free at {root}")
    return check


@pytest.mark.parametrize(
    ("make", "outcome", "found"),
    [
        (lambda root, _: cohort(root / "nowhere", None), "problem", "nowhere"),
        (lambda root, _: cohort(root, "fed_medlora"), "problem", "0 notes"),
        (lambda root, _: cohort(root, "fedmrg", **ALL_TRAIN), "warning", "val 0"),
        (lambda root, _: backbone(root, "llama"), "problem", "there is no folder"),
        (lambda root, _: backbone(root, "."), "problem", "has no *.safetensors file"),
        (lambda root, _: site_checks.backbone(site(root), "fed_medlora"), "ok", "embedded notes_decoder"),
        (lambda root, _: site_checks.backbone(site(root), "token_classification"), "ok", NEW_ENCODER),
        (lambda root, _: site_checks.device(site(root, device="cuda")), "problem", "torch sees no GPU"),
        (lambda root, _: site_checks.device(site(root)), "ok", "CPU"),
        (lambda root, _: site_checks.memory(site(root), None), "ok", "name a job with --job"),
        (lambda root, patch: memory(root, 10**12, patch), "ok", ONE_GB),
        (lambda root, patch: memory(root, 11 * 10**8, patch), "warning", ONE_GB),
        (lambda root, patch: memory(root, 10**8, patch), "problem", ONE_GB),
        (lambda root, patch: disk(root, 10**12, patch), "ok", "1000.0 GB free"),
        (lambda root, patch: disk(root, 5 * 10**9, patch), "warning", "5.0 GB free"),
        (lambda root, patch: disk(root, 10**9, patch), "problem", "1.0 GB free"),
    ],
)
def test_what_a_site_brings_is_told(
    small_hospital: Path, monkeypatch: pytest.MonkeyPatch, make: Any, outcome: str, found: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    check = make(small_hospital, monkeypatch)
    says(check, outcome, found, "medflare cohort inspect" if found == "nowhere" else "")


def test_gpus_that_a_site_names_are_looked_for_and_their_memory_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda number: f"card {number}")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda number: ((number + 1) * 10**9, 10**10))
    monkeypatch.setattr(site_checks, "footprint", lambda *given: NEED)

    def hospital(devices: list[Any], spread: bool = False) -> SiteConfig:
        return site(tmp_path).model_copy(update={"devices": tuple(devices), "spread_layers": spread})

    says(site_checks.device(hospital([])), "ok", "card 0")
    says(site_checks.device(hospital([0, 1])), "ok", "card 0, card 1")
    says(site_checks.device(hospital([1, 4, 7])), "problem", "GPU 4, 7, and torch sees 2", "nvidia-smi -L")
    says(site_checks.device(hospital(["cpu", "cpu"])), "ok", "CPU")
    found = {
        spread: site_checks.memory(hospital([1, 0], spread), FEDMRG).found.rsplit("; ", 1)[-1]
        for spread in (False, True)
    }
    assert found == {False: "2.0 GB free on the GPU", True: "3.0 GB free on the 2 GPUs"}


def test_the_weights_of_scorers_are_looked_for(tiny_encoder: Path, tmp_path: Path) -> None:
    plain = site(tmp_path)
    assert site_checks.scorers(plain) == []
    (check,) = site_checks.scorers(plain.model_copy(update={"scorers": {"bertscore": tiny_encoder}}))
    says(check, "ok", "bertscore")
    for folder, found in ((tmp_path / "none", "there is no"), (tmp_path, "lacks config.json")):
        (check,) = site_checks.scorers(plain.model_copy(update={"scorers": {"bertscore": folder}}))
        says(check, "warning", found, "Copy the weights there")


def test_an_embedded_backbone_has_a_fingerprint(tmp_path: Path) -> None:
    embedded = site_checks.backbone(site(tmp_path), "fedmrg")
    says(embedded, "ok", "embedded decoder, fingerprint ")
    assert len(embedded.found.split()[-1]) == 64


def test_free_memory_of_this_machine_is_known() -> None:
    free, where = free_memory("cpu")
    assert where == "CPU"
    assert 10**7 < free < 10**14


def test_the_policy_is_told_in_words_and_asked_about_the_job() -> None:
    policy = Policy(rules=PolicyConfig(min_sites=4, require=("mask",)))
    job = Job(title="fedmrg", method="fedmrg", n_clients=3, controller={"num_rounds": 5})
    words, asked = site_checks.rules(policy, job)
    says(words, "ok", "Every update must have: mask. At least 4 sites must take part.")
    says(asked, "problem", "policy.require: ")
    assert "policy.min_sites: 3 sites take part" in asked.found
    masked = Job(title="fedmrg", method="fedmrg", n_clients=4, controller={"protection": "masking"})
    assert [check.outcome for check in site_checks.rules(policy, masked)] == ["ok", "ok"]


def test_the_policy_is_asked_about_what_rule_and_method_send() -> None:
    drfa = Job(title="fedmrg", method="fedmrg", aggregation={"rule": "drfa"})
    says(site_checks.rules(Policy(), drfa)[1], "problem", "policy.train_losses: ")
    paper = Job(title="fedmrg", method="fedmrg", settings={"preset": "paper"})
    says(site_checks.rules(Policy(), paper)[1], "problem", "write 'features: raw' under 'policy'")
    agreed = Policy(rules=PolicyConfig(train_losses=True, features="raw"))
    for job in (drfa, paper):
        assert [check.outcome for check in site_checks.rules(agreed, job)] == ["ok", "ok"]
