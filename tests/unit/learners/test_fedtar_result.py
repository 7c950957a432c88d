# SPDX-License-Identifier: Apache-2.0
"""A result folder of FedTAR opened again, at a participant and at a hospital that took no part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fedtar_sites import learner, plan, site, write_visits
from safetensors.torch import load_file, save_file

from command_line import facts, medflare, refusal
from medflare.aggregation.temporal import TemporalResidual
from medflare.core.errors import ConfigError, DataError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.origin import Origin
from medflare.data.drafted_patient import DraftedPatient
from medflare.in_process.temporal_loop import agree_on_mixture, federate_visits
from medflare.learners.fedtar.drafted_patients import open_visit_drafts
from medflare.learners.fedtar.learner import FedTARLearner
from medflare.learners.fedtar.result import open_result
from medflare.learners.visit_results import score_result
from medflare.models.peft_folder import Card, PeftFolder
from medflare.models.report_result import load_generator
from medflare.recipes import after_run
from medflare.tasks.reports.drafting import draft_images, open_image

CARD = Card(
    job="t", method="fedtar", run_id="r", base_model="b", fingerprint="f", sites=1, rounds=1, metrics={}
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("result")
    return {f"site-{n + 1}": write_visits(folder / f"site-{n + 1}", n, patients=14) for n in range(2)}


@pytest.fixture
def finished(folders: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> Any:
    """A run over site-1 alone: its learner and the folder the server writes."""

    def ran(**settings: Any) -> tuple[FedTARLearner, Path]:
        mixture = {"source": "federated"} | settings.pop("mixture", {})
        site_learner = learner(site(folders["site-1"], tiny_backbone), mixture=mixture, **settings)
        persistor = PeftFolder()
        persistor.expect(site_learner.describe())
        if site_learner.patients is not None and mixture["source"] == "federated":
            agreed = agree_on_mixture(
                {"site-1": site_learner.patients}, site_learner.settings.mixture, 2, 0
            ).mixture
            assert agreed is not None
            persistor.export |= RoundHints(mixture=agreed.to_hint()).to_json()
        state = federate_visits(
            {"site-1": site_learner}, TemporalResidual(visits=3), 1, lambda n: plan(n, steps=2)
        )
        site_learner.load_shared(state)
        return site_learner, persistor.write(tmp_path / "adapter", state, CARD)

    return ran


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mixture": {"source": "global_fixed"}},
        {"personal": False},
        {"prior_context": True},
        {"visit_context": True},
        {"train_backbone": True},
    ],
    ids=["federated", "fixed grid", "not personal", "prior", "told the visit", "whole"],
)
def test_a_site_that_opens_the_result_has_the_model_of_the_run(
    finished: Any, folders: dict[str, Path], tiny_backbone: Path, settings: dict[str, Any]
) -> None:
    site_learner, folder = finished(**settings)
    again = open_result(folder, site(folders["site-1"], tiny_backbone))
    rows = site_learner.rows("test")
    assert again.rows_loss(rows) == pytest.approx(site_learner.rows_loss(rows), abs=1e-6)
    assert again.draft(rows) == site_learner.draft(rows)
    assert again.settings == site_learner.settings


def test_patients_of_an_unseen_hospital_are_placed_in_the_agreed_mixture(
    finished: Any, folders: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    site_learner, folder = finished()
    new = site(folders["site-2"], tiny_backbone, "hospital-9")
    opened = open_result(folder, new)
    assert opened.patients is not None
    assert site_learner.patients is not None
    assert site_learner.patients.mixture is not None
    assert opened.patients.mixture is not None
    expected = site_learner.patients.mixture.assign(opened.patients.profiles.values).float()
    assert torch.equal(opened.patients.assigned(opened.patients.profiles.patients), expected)

    assert after_run.tester(folder) is score_result
    evaluation = score_result(
        folder, new, role="unseen", adapter=None, split="val", folder=tmp_path / "out", seed=0
    )
    assert (evaluation.site, evaluation.role, evaluation.split) == ("hospital-9", "unseen", "val")
    assert evaluation.studies == len(opened.rows("val"))
    assert evaluation.predictions is not None
    assert (tmp_path / "out" / evaluation.predictions).is_file()


def test_a_projection_that_stayed_at_its_site_leaves_nobody_personal(
    finished: Any, folders: dict[str, Path], tiny_backbone: Path
) -> None:
    _, folder = finished(mixture={"source": "per_client"})
    opened = open_result(folder, site(folders["site-2"], tiny_backbone, "site-2"))
    assert opened.patients is None
    assert opened.model.patient is None
    assert opened.draft(opened.rows("test")[:2])


def test_single_pictures_are_drafted_without_a_patient(finished: Any, tiny_backbone: Path) -> None:
    _, folder = finished()
    model, decoding = load_generator(folder, backbone=tiny_backbone, precision="fp32")
    images = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    texts, codes = model.generate(images, decoding)
    assert len(texts) == 2
    assert not codes.any()
    assert model.anybody is not None
    with pytest.raises(ConfigError, match="no site's own adapter"):
        load_generator(folder, personalised=folder, backbone=tiny_backbone)


@pytest.mark.parametrize("source", ["federated", "global_fixed"])
def test_a_picture_is_drafted_as_of_its_patient(
    finished: Any, folders: dict[str, Path], tiny_backbone: Path, source: str
) -> None:
    """`medflare generate --age --sex --prior` writes what the site itself writes of that visit."""
    site_learner, folder = finished(mixture={"source": source}, prior_context=True, max_prior_tokens=20)
    visits = open_visit_drafts(folder, backbone=tiny_backbone, precision="fp32")
    assert visits.depends_on == ("age", "sex")
    assert visits.reads_visits
    rows = [row for row in site_learner.rows("train") if site_learner.samples.visits[row].number < 3][:8]
    samples = site_learner.samples
    people = [samples.patients[samples.owners[row]] for row in rows]
    known = [
        DraftedPatient(age=who.age, sex=who.sex, prior=samples.visits[row].prior)
        for row, who in zip(rows, people, strict=True)
    ]
    assert site_learner.patients is not None
    theirs = site_learner.patients.assigned([who.patient_id for who in people])
    torch.testing.assert_close(visits.assigned(known), theirs)
    images = [samples.visits[row].study.images[0] for row in rows]
    decoding = site_learner.settings.decoding
    opened = [
        open_image(visits.model, image, image.name, patient=patient, depends_on=visits.depends_on)
        for image, patient in zip(images, known, strict=True)
    ]
    drafts = draft_images(visits.model, decoding, opened, Origin(adapter="a"), visits.write)
    assert [draft.report for draft in drafts] == site_learner.draft(rows, decoding)
    assert not any("not known" in warning for draft in drafts for warning in draft.warnings)


def test_a_profile_without_sex_asks_for_none(finished: Any, tiny_backbone: Path) -> None:
    _, folder = finished(profile={"sex": False})
    visits = open_visit_drafts(folder, backbone=tiny_backbone, precision="fp32")
    assert visits.depends_on == ("age",)
    assert DraftedPatient(sex="F").lacks(visits.depends_on) == ["age"]


@pytest.mark.parametrize("settings", [{"personal": False}, {"mixture": {"source": "per_client"}}])
def test_a_result_whose_words_do_not_depend_on_the_patient_says_so(
    finished: Any, tiny_backbone: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    _, folder = finished(visit_context=False, **settings)
    visits = open_visit_drafts(folder, backbone=tiny_backbone, precision="fp32")
    assert visits.depends_on == ()
    assert not visits.reads_visits
    assert visits.write(torch.rand(1, 1, 32, 32), [DraftedPatient()], visits.decoding)
    given = ["generate", tmp_path / "a.png", "-r", folder, "--backbone", tiny_backbone, "--precision", "fp32"]
    assert "--age: the words of this model do not depend on it" in refusal(2, *given, "--age", "60")
    (tmp_path / "prior.txt").write_text("Clear.")
    assert "--prior: the words of this model do not" in refusal(2, *given, "--prior", tmp_path / "prior.txt")


def test_the_command_takes_age_sex_and_the_report_before(
    finished: Any, folders: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    """What is not known stands beside the draft."""
    _, folder = finished(prior_context=True)
    picture = next((folders["site-1"] / "images").iterdir())
    given = ["generate", picture, "-r", folder, "--backbone", tiny_backbone, "--precision", "fp32"]
    for options, unknown in (
        ([], "age and sex of the patient not known"),
        (["--age", "61"], "sex of the patient not known"),
        (["--age", "61", "--sex", "F"], ""),
    ):
        (draft,) = facts(*given, *options)
        warnings = [text for text in draft["warnings"] if "of the patient not known" in text]
        assert [text.startswith(unknown) for text in warnings] == ([True] if unknown else [])
    assert "expected F or M" in refusal(2, *given, "--sex", "female")
    (tmp_path / "cut.dcm").write_bytes(b"\0" * 128 + b"DICM" + b"\xff" * 40)
    done = medflare(*given, tmp_path / "cut.dcm", "--json")
    assert (done.exit_code, len(json.loads(done.stdout))) == (7, 1), "a broken file costs no other its draft"
    assert "left out: " in done.stderr
    assert "cut.dcm: cannot be decoded" in done.stderr
    (tmp_path / "latin.txt").write_bytes(b"Gr\xf6\xdfe normal.")
    assert "--prior: latin.txt" in refusal(3, *given, "--prior", tmp_path / "latin.txt")
    (tmp_path / "prior.txt").write_text("Large effusion.")
    assert facts(*given, "--prior", tmp_path / "prior.txt")


def test_what_a_folder_lacks_is_named(finished: Any, folders: dict[str, Path], tiny_backbone: Path) -> None:
    _, folder = finished()
    new = site(folders["site-2"], tiny_backbone, "site-2")
    file, tensors = folder / "longitudinal_generator.json", folder / "longitudinal_generator.safetensors"
    content = json.loads(file.read_text(encoding="utf-8"))
    without = {name: value for name, value in content.items() if name != "mixture"}
    file.write_text(json.dumps(without), encoding="utf-8")
    with pytest.raises(DataError, match="holds no mixture of patients' profiles"):
        open_result(folder, new)
    mixture = content["mixture"]
    for mangled in (
        {"weights": mixture["weights"][:-1]},
        {"means": []},
        {"variances": [[]]},
        {"weights": "x"},
    ):
        file.write_text(json.dumps(content | {"mixture": mixture | mangled}), encoding="utf-8")
        with pytest.raises((ConfigError, DataError, UpdateError), match="mixture"):
            open_result(folder, new)
    file.write_text(json.dumps(content | {"encoder": {"sha256": "0" * 64}}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"image encoder of checksum 0000.*encoder_weights"):
        open_result(folder, new)
    state = load_file(tensors)
    del state["projection.0.bias"]
    save_file(state, tensors)
    with pytest.raises(DataError, match=r"lacks the tensor 'projection\.0\.bias'"):
        open_result(folder, new)
