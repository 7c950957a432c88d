# SPDX-License-Identifier: Apache-2.0
"""FedTAR at one site: what travels, what stays, how it is evaluated, and what odd cohorts do to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fedtar_sites import SPLIT, at_visit, change_rows, learner, plan, site

from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints
from medflare.tasks.prediction_files import read_predictions
from medflare.worker.mixture_sums import profile_specs


def test_bridge_client_adapter_and_generators_travel_and_nothing_else(fedtar: Any) -> None:
    site_learner = fedtar()
    spec, update = site_learner.shared_spec(), site_learner.fit(at_visit(1, steps=3))
    assert set(update.delta) == set(spec)
    assert {name.split(".")[0] for name in spec} == {"adapter", "projection", "patient"}
    counts = site_learner.describe().parameters
    assert sum(counts.values()) == sum(torch.Size(shape).numel() for shape, _ in spec.values())
    assert set(counts) == {"adapter", "projection", "patient_projection", "hypernetwork"}
    assert all(delta.abs().sum() > 0 for name, delta in update.delta.items() if not name.endswith(".a.bias"))
    assert all(torch.isfinite(delta).all() for delta in update.delta.values())


def test_without_personalisation_there_is_no_patient_adapter(fedtar: Any) -> None:
    for variant in ("without_personalisation", "pooled_baseline"):
        site_learner = fedtar(variant=variant)
        assert {name.split(".")[0] for name in site_learner.shared_spec()} == {"adapter", "projection"}
        assert set(site_learner.describe().parameters) == {"adapter", "projection"}
        with pytest.raises(ConfigError, match=r"mixture.*settings\.personal is false"):
            profile_specs(site_learner, 4)
    with pytest.raises(ConfigError, match="personal contradict"):
        fedtar(variant="pooled_baseline", personal=True)


def test_everything_travels_where_everything_learns(fedtar: Any) -> None:
    site_learner = fedtar(train_backbone=True)
    update = site_learner.fit(at_visit(1, steps=2))
    moved = {name.split(".")[0] for name, delta in update.delta.items() if delta.abs().sum() > 0}
    assert moved == {"adapter", "projection", "patient", "encoder", "decoder"}
    assert site_learner.reports.patches.facts() == {}


def test_a_projection_of_an_own_mixture_stays_and_learns(fedtar: Any) -> None:
    site_learner = fedtar(mixture={"source": "per_client"})
    names = [name for name in site_learner.model.shared_tensors() if name.startswith("patient.projection.")]
    assert names
    assert not set(names) & set(site_learner.shared_spec())
    before = {name: site_learner.model.shared_tensors()[name].clone() for name in names}
    for visit in (1, 2):
        site_learner.fit(at_visit(visit))
    kept, values = site_learner.local_state()
    assert all(not torch.equal(kept[f"local.{name}"], before[name]) for name in names)
    again = fedtar(mixture={"source": "per_client"})
    again.load_local_state(kept, values)
    now = again.model.shared_tensors()
    assert all(torch.equal(now[name], kept[f"local.{name}"]) for name in names)


# ---- evaluation --------------------------------------------------------------------------------------------


def test_evaluation_by_loss_alone_and_by_reports(fedtar: Any) -> None:
    site_learner = fedtar()
    rows = site_learner.rows("val")
    assert site_learner.evaluate("val", plan(hints=RoundHints(loss_only=True))) == {
        "loss": site_learner.rows_loss(rows)
    }
    assert set(site_learner.evaluate("train", plan(hints=RoundHints(probe=3)))) == {"loss"}
    assert {"loss", "bleu_4", "label_f1"} <= set(site_learner.evaluate("val", plan(limit=4)))
    assert fedtar(split=SPLIT | {"val": 0, "train": 0.8}).evaluate("val", plan()) == {}


def test_the_final_test_writes_predictions(fedtar: Any, tmp_path: Path) -> None:
    site_learner = fedtar()
    (found,) = site_learner.finish(plan(limit=4), tmp_path)
    assert (found.site, found.studies) == ("site-1", 4)
    items = read_predictions(tmp_path / found.predictions)
    assert [item.generated for item in items] == site_learner.draft(site_learner.rows("test")[:4])


def test_tokens_of_a_frozen_encoder_are_those_it_would_give_again(fedtar: Any) -> None:
    site_learner, fresh = fedtar(), fedtar(train_backbone=True)
    rows = site_learner.rows("train")[:5]
    (kept, there), (again, also) = (m.reports.patches.patches(rows) for m in (site_learner, fresh))
    assert torch.equal(there, also)
    assert torch.allclose(kept, again.detach(), atol=1e-5)
    facts = site_learner.reports.patches.facts()
    assert facts["pictures"] == len(site_learner.samples)
    assert facts["bytes"] == len(site_learner.samples) * 4 * 128 * 4


def test_prior_reports_can_be_read(fedtar: Any) -> None:
    site_learner, plain = fedtar(prior_context=True), fedtar()
    rows = site_learner.rows("val")
    assert site_learner.rows_loss(rows) != plain.rows_loss(rows)
    assert site_learner.fit(at_visit(2, steps=2)).metrics["loss"] > 0


# ---- odd cohorts -------------------------------------------------------------------------------------------


def copied(folder: Path, into: Path) -> Path:
    shutil.copytree(folder, into)
    return into


def test_unknown_ages_and_sexes_are_no_fault(
    visit_hospitals: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    folder = copied(visit_hospitals[0], tmp_path / "site")
    change_rows(folder, age=None, sex=None)
    site_learner = learner(site(folder, tiny_backbone))
    assert site_learner.patients is not None
    assert site_learner.patients.values.isnan().all()
    assert site_learner.fit(at_visit(1)).metrics["loss"] > 0


def test_a_hashed_identifier_needs_a_key_that_stays(
    visit_hospitals: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    config = site(visit_hospitals[0], tiny_backbone)
    with pytest.raises(ConfigError, match=r"hash_feature needs a key that stays here.*'state' in site\.yaml"):
        learner(config, profile={"hash_feature": True})
    kept = config.model_copy(update={"state": tmp_path})
    one, again = (learner(kept, profile={"hash_feature": True}) for _ in range(2))
    assert one.patients is not None
    assert again.patients is not None
    assert one.patients.values.shape[1] == 3
    assert torch.equal(one.patients.values, again.patients.values)


def test_visits_beyond_those_of_the_job_are_left_out_and_counted(fedtar: Any) -> None:
    site_learner = fedtar(visits=2)
    beyond = (
        len(site_learner.samples.rows("train", 3))
        + len(site_learner.samples.rows("val", 3))
        + len(site_learner.samples.rows("test", 3))
    )
    assert site_learner.describe().skipped["visit beyond T"] == beyond > 0
    assert site_learner.fit(plan()).examples == len(site_learner.samples.rows("train", 1)) + len(
        site_learner.samples.rows("train", 2)
    )
    assert site_learner.reports.patches.facts()["pictures"] == len(site_learner.samples) - beyond


def test_a_visit_too_long_for_the_decoder_is_refused_before_anything_is_trained(fedtar: Any) -> None:
    with pytest.raises(ConfigError, match=r"1 picture\(s\) takes \d+ positions.*decoder has 512.*token_grid"):
        fedtar(max_report_tokens=600)
