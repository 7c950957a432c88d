# SPDX-License-Identifier: Apache-2.0
"""A result folder in use: opened by PEFT, drafting from PNG, JPEG and DICOM, tested on own studies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import answer, facts, medflare, refusal
from medflare.cli.output import PARTLY_DONE
from medflare.core.errors import ConfigError, DataError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RunRecord, SiteRecord, read_record
from medflare.learners.fedmrg.learner import FedMRGLearner, build
from medflare.models.report_result import load_generator
from medflare.recipes.job_reader import read_job
from medflare.recipes.result_origin import reference_files
from medflare.tasks.reports import drafting
from medflare.tasks.reports.evaluation import draft, write_personalised
from medflare.tasks.reports.plausibility import write_reference
from site_builders import read_cohort, site_config, write_result

JOB = Path(__file__).parents[3] / "jobs/fedmrg"
SITE = "site-1/simulate_job/result"
"""A site's folder in the workspace of a simulator."""


@pytest.fixture(scope="module")
def run(small_hospital: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FedMRGLearner]:
    """A run's folder as the server writes it, from a learner that trained a few steps at one site."""
    workspace = tmp_path_factory.mktemp("run")
    folder = workspace / "server" / "simulate_job"
    settings = read_job(JOB).settings | {"batch": 8}
    settings["decoding"] = settings["decoding"] | {"max_new_tokens": 12}
    learner = build(settings, site_config("manifest", small_hospital), 0)
    learner.load_shared(learner.initial_shared())
    learner.fit(RoundPlan(round=0, rounds=1, steps=3))
    beside = workspace / SITE
    write_reference(
        learner.model,
        learner.samples.images,
        learner.samples.split_indices("train"),
        [*learner.samples.split_indices("val"), *learner.samples.split_indices("test")],
        site="site-1",
        seed=0,
        folder=beside,
    )
    write_personalised(learner, beside / "personalised")
    fingerprint = learner.model.backbone.fingerprint
    names = {"job": "fedmrg", "method": "fedmrg", "base_model": "medflare-embedded"}
    write_result(folder / "result", learner, fingerprint=fingerprint, **names)
    record = RunRecord(job="fedmrg", method="fedmrg", run_id="r", started="2026-01-01T00:00:00Z")
    record.sites["site-1"] = SiteRecord(backbone="medflare-embedded", fingerprint=fingerprint)
    record.artefacts["final"] = "result/adapter"
    record.write(folder / "run.json")
    return folder, learner


def images(folder: Path, pixels: np.ndarray) -> list[Path]:
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    Image.fromarray(pixels).save(folder / "x.png")
    Image.fromarray(pixels).save(folder / "x.jpg", quality=95)
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = (
        SecondaryCaptureImageStorage,
        generate_uid(),
    )
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = FileDataset(str(folder / "x.dcm"), {}, file_meta=meta, preamble=b"\0" * 128)
    data.Rows, data.Columns = pixels.shape
    data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    data.Modality, data.PhotometricInterpretation, data.SamplesPerPixel = "DX", "MONOCHROME2", 1
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
    data.PixelData = pixels.tobytes()
    pydicom.dcmwrite(folder / "x.dcm", data, enforce_file_format=True)
    return [folder / "x.png", folder / "x.jpg", folder / "x.dcm"]


def test_png_jpeg_and_dicom_of_one_picture_give_one_draft(
    run: tuple[Path, FedMRGLearner], small_hospital: Path, tmp_path: Path
) -> None:
    pixels = np.asarray(Image.open(next((small_hospital / "images").iterdir())))
    files = images(tmp_path, pixels)
    drafts = facts("generate", *files, "-r", run[0], "--precision", "fp32")
    assert [Path(d["image"]).suffix for d in drafts] == [".png", ".jpg", ".dcm"]
    assert drafts[0]["report"] == drafts[2]["report"] != ""
    assert drafts[0]["findings"] == drafts[2]["findings"]


def test_every_draft_says_what_it_is_who_made_it_and_what_is_in_doubt(
    run: tuple[Path, FedMRGLearner], small_hospital: Path, tmp_path: Path
) -> None:
    picture = next((small_hospital / "images").iterdir())
    *_, dicom = images(tmp_path, np.asarray(Image.open(picture)))
    drafts = facts("generate", picture, dicom, "-r", run[0], "--precision", "fp32")
    assert {item["notice"] for item in drafts} == {"Draft for a radiologist, never a diagnosis."}
    assert drafts[0]["model"]["run_id"] == "r"
    assert run[1].model.backbone.fingerprint[:16] in drafts[0]["model"]["backbones"][0]
    assert any("without a DICOM header" in warning for warning in drafts[0]["warnings"])
    assert any("no body part" in warning for warning in drafts[1]["warnings"])
    text = medflare("generate", picture, "-r", run[0], "--precision", "fp32").stdout
    assert text.startswith("Draft for a radiologist, never a diagnosis. Model: fedmrg, run r, weights ")
    assert drafts[0]["model"]["adapter"] in text
    assert "! a picture without a DICOM header" in text
    shutil.copytree(run[0] / "result" / "adapter", tmp_path / "adapter")
    alone = medflare("generate", picture, "-r", tmp_path / "adapter", "--precision", "fp32").stdout
    assert "does not say what it was trained on" in alone
    assert drafts[0]["model"]["adapter"] in alone
    assert "nothing compares this image with the training images" in alone


def test_an_image_unlike_the_training_images_is_named_and_one_of_them_is_not(
    run: tuple[Path, FedMRGLearner], small_hospital: Path, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (96, 96), dtype=np.uint8)
    pictures = [images(tmp_path, noise)[0], next((small_hospital / "images").iterdir())]
    unlike, like = facts("generate", *pictures, "-r", run[0], "--precision", "fp32")
    assert unlike["plausibility"]["verdict"] == "unlike"
    assert unlike["plausibility"]["distance"] > unlike["plausibility"]["limit"]
    assert any("unlike the images that the model was trained on" in text for text in unlike["warnings"])
    assert (like["plausibility"]["verdict"], like["plausibility"]["site"]) == ("like", "site-1")
    assert not any("unlike" in text for text in like["warnings"])
    missing = refusal(DataError.exit_code, "generate", pictures[1], "-r", run[0], "--reference", tmp_path)
    assert "expected a site's result folder with plausibility.safetensors" in missing


@pytest.fixture(scope="module")
def examination(tmp_path_factory: pytest.TempPathFactory, small_hospital: Path) -> Path:
    """A radiograph as a PACS has it: with name, number and study."""
    import pydicom
    from pydicom.uid import generate_uid

    folder = tmp_path_factory.mktemp("pacs")
    *_, path = images(folder, np.asarray(Image.open(next((small_hospital / "images").iterdir()))))
    data = pydicom.dcmread(path)
    data.PatientName, data.PatientID, data.BodyPartExamined = "Miller^Ann", "4711", "CHEST"
    data.StudyInstanceUID, data.SeriesInstanceUID = generate_uid(), generate_uid()
    data.save_as(path)
    return path


@pytest.mark.parametrize("kept", [False, True], ids=["stripped", "with-identifiers"])
def test_fhir_drafts_are_preliminary_valid_and_read_again(
    run: tuple[Path, FedMRGLearner], examination: Path, tmp_path: Path, kept: bool
) -> None:
    given = [examination, "-r", run[0], "--precision", "fp32", "-o", tmp_path, "--format", "fhir"]
    draft_ = facts("generate", *given, *(["--identifiers"] if kept else []))[0]
    line = (tmp_path / "drafts.ndjson").read_text(encoding="utf-8")
    assert [name in line for name in ("4711", "Miller")] == [kept, False]
    resource = json.loads(line)
    assert {resource["status"], *(o["status"] for o in resource["contained"][1:])} == {"preliminary"}
    assert resource["conclusion"].startswith(
        "Draft for a radiologist, never a diagnosis. Model: fedmrg, run r"
    )
    notes = read_cohort("fhir_ndjson", tmp_path, tasks=(), select={"status": "preliminary"}).notes
    assert [note.text for note in notes] == [draft_["report"]]
    with pytest.raises(DataError, match="no usable"):
        read_cohort("fhir_ndjson", tmp_path, tasks=())
    fhir = pytest.importorskip("fhir.resources")
    fhir.get_fhir_model_class("DiagnosticReport").model_validate(resource)


@pytest.mark.parametrize("kept", [False, True], ids=["stripped", "with-identifiers"])
def test_a_structured_report_is_a_preliminary_draft_and_names_nobody_unless_asked(
    run: tuple[Path, FedMRGLearner], examination: Path, tmp_path: Path, kept: bool
) -> None:
    pytest.importorskip("highdicom")
    import pydicom

    shutil.copy(examination, tmp_path)
    given = [examination, "-r", run[0], "--precision", "fp32", "-o", tmp_path, "--format", "dicom-sr"]
    draft_ = facts("generate", *given, *(["--identifiers"] if kept else []))[0]
    report, image = pydicom.dcmread(tmp_path / "x.sr.dcm"), pydicom.dcmread(examination)
    assert (report.PreliminaryFlag, report.VerificationFlag) == ("PRELIMINARY", "UNVERIFIED")
    assert (str(report.PatientName), report.PatientID) == (("Miller^Ann", "4711") if kept else ("", ""))
    assert (report.StudyInstanceUID == image.StudyInstanceUID) is kept
    said = report.ContentSequence[0].TextValue
    assert said.startswith("Draft for a radiologist, never a diagnosis. Model: fedmrg, run r")
    with pytest.raises(DataError, match="no report"):
        read_cohort("dicom_reports", tmp_path)
    if kept:
        study = read_cohort("dicom_reports", tmp_path, select={"status": "preliminary"}).studies[0]
        assert study.report == draft_["report"]


def test_a_picture_has_no_structured_report(
    run: tuple[Path, FedMRGLearner], small_hospital: Path, tmp_path: Path
) -> None:
    pytest.importorskip("highdicom")
    picture = next((small_hospital / "images").iterdir())
    given = [picture, "-r", run[0], "-o", tmp_path, "--format", "dicom-sr"]
    assert "write pictures as --format txt or fhir" in refusal(DataError.exit_code, "generate", *given)
    answer("generate", picture, "-r", run[0], "-o", tmp_path)
    text = (tmp_path / f"{picture.stem}.txt").read_text(encoding="utf-8")
    assert text.startswith("Draft for a radiologist, never a diagnosis.")


def test_a_folder_of_a_pacs_is_drafted_in_batches_and_each_patient_keeps_a_draft(
    run: tuple[Path, FedMRGLearner], small_hospital: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of one name in the folders of two patients, as a PACS exports them; one of them is damaged."""
    pictures, export, out = sorted((small_hospital / "images").iterdir()), tmp_path / "pacs", tmp_path / "out"
    for patient, picture in zip(("p1", "p2", "p3"), pictures, strict=False):
        (export / patient).mkdir(parents=True)
        *_, dicom = images(export / patient, np.asarray(Image.open(picture)))
        dicom.rename(dicom.with_name("IM000001"))  # a PACS has no endings, and one picture of each image
        for double in ("x.png", "x.jpg"):
            (export / patient / double).unlink()
    (export / "p2" / "IM000002").write_bytes(b"\0" * 128 + b"DICM" + b"\1" * 40)
    (export / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    (export / "p1" / "notes.txt").write_text("no image")
    alone = [
        facts("generate", export / patient / "IM000001", "-r", run[0], "--precision", "fp32")[0]["report"]
        for patient in ("p1", "p2", "p3")
    ]
    assert len(set(alone)) > 1, "drafts that are all alike would not show an exchange"
    monkeypatch.setattr(drafting, "BATCH", 2)
    given = ["generate", export, "-r", run[0], "--precision", "fp32", "-o", out]
    listed = refusal(PARTLY_DONE, *given)
    assert "1 of 4 left out" in listed
    assert "p2/IM000002" in listed
    for patient, report in zip(("p1", "p2", "p3"), alone, strict=True):
        assert (out / patient / "IM000001.txt").read_text(encoding="utf-8").endswith(f"\n\n{report}\n")
    assert len([file for file in out.rglob("*") if file.is_file()]) == 3
    (out / "p1" / "IM000001.txt").write_text("corrected by a radiologist")
    refused = refusal(DataError.exit_code, *given)
    assert "has p1/IM000001.txt and 2 more already, perhaps drafts that somebody has corrected" in refused
    assert (out / "p1" / "IM000001.txt").read_text() == "corrected by a radiologist"
    refusal(PARTLY_DONE, *given, "--overwrite")
    assert alone[0] in (out / "p1" / "IM000001.txt").read_text()
    (tmp_path / "empty").mkdir()
    assert "holds no image" in refusal(DataError.exit_code, "generate", tmp_path / "empty", "-r", run[0])


def test_a_ct_of_a_head_gets_no_chest_report(run: tuple[Path, FedMRGLearner], tmp_path: Path) -> None:
    import pydicom

    *_, path = images(tmp_path, np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8))
    data = pydicom.dcmread(path)
    data.Modality, data.BodyPartExamined = "CT", "HEAD"
    data.save_as(path)
    refused = refusal(DataError.exit_code, "generate", path, "-r", run[0])
    assert "its modality is CT" in refused
    assert "not a radiograph" in refused


def test_a_personalised_adapter_drafts_what_the_site_itself_drafts(
    run: tuple[Path, FedMRGLearner], small_hospital: Path
) -> None:
    folder, learner = run
    learner.use_personalised()
    row = learner.samples.split_indices("test")[0]
    expected, _ = draft(learner.model, learner.samples, [row], learner.settings.decoding, 1)
    given = [learner.samples.paths[row], "-r", folder, "-p", folder.parents[1] / SITE / "personalised"]
    assert facts("generate", *given, "--precision", "fp32")[0]["report"] == expected[0]


def test_the_adapter_opens_in_plain_peft(run: tuple[Path, FedMRGLearner]) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from medflare.models.embedded import decoder_folder

    folder, learner = run
    base: Any = AutoModelForCausalLM.from_pretrained(decoder_folder(), dtype=torch.float32)
    opened = PeftModel.from_pretrained(base, folder / "result" / "adapter")
    learner.use_generic()
    ids = torch.tensor([[1, 40, 41, 42]])
    assert torch.allclose(opened(input_ids=ids).logits, learner.model.backbone.model(ids).logits, atol=1e-5)


def test_evaluate_adds_to_the_record_and_page_shows_it(
    run: tuple[Path, FedMRGLearner], small_hospital: Path, tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text(
        f"sites: {{hospital-9: {{device: cpu, cohort: {{format: manifest, root: {small_hospital}}}}}}}\n"
    )
    assert facts("evaluate", run[0], "-f", tmp_path / "site.yaml")[0]["role"] == "unseen"
    record = read_record(run[0])
    assert [(e.site, e.adapter) for e in record.evaluations] == [("hospital-9", "generic")]
    page = Path(answer("page", run[0]).strip())
    assert "hospital-9" in page.read_text(encoding="utf-8")


def test_a_result_whose_batch_statistics_stayed_at_the_sites_is_refused(
    run: tuple[Path, FedMRGLearner], tmp_path: Path
) -> None:
    export = json.loads((run[0] / "result" / "adapter" / "report_generator.json").read_text())
    export["model"]["encoder"]["batch_norm"] = "local"
    (tmp_path / "report_generator.json").write_text(json.dumps(export))
    with pytest.raises(ConfigError, match="running statistics stayed"):
        load_generator(tmp_path)


def test_another_backbone_is_refused_with_both_fingerprints(
    run: tuple[Path, FedMRGLearner], tiny_backbone: Path, small_hospital: Path
) -> None:
    picture = next((small_hospital / "images").iterdir())
    refused = refusal(2, "generate", picture, "-r", run[0], "--backbone", tiny_backbone)
    assert run[1].model.backbone.fingerprint[:16] in refused
    assert "tiny-llama" in refused


def test_a_corrupt_image_costs_no_other_one_its_draft(
    run: tuple[Path, FedMRGLearner], tmp_path: Path
) -> None:
    good = images(tmp_path, np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8))[0]
    (tmp_path / "corrupt.dcm").write_bytes(b"DICM and no more")
    result = medflare("generate", tmp_path / "corrupt.dcm", good, "-r", run[0], "--json")
    assert result.exit_code == PARTLY_DONE
    assert [item["image"] for item in json.loads(result.stdout)] == [str(good)]
    assert f"1 of 2 left out: {tmp_path / 'corrupt.dcm'}" in result.stderr
    assert "corrupt image" in refusal(DataError.exit_code, "generate", tmp_path / "corrupt.dcm", "-r", run[0])


def test_a_wrong_device_is_refused(run: tuple[Path, FedMRGLearner]) -> None:
    assert "expected auto, cpu, cuda" in refusal(2, "generate", "x.png", "-r", run[0], "--device", "gpu")


def test_the_files_of_sites_are_found_from_within_the_run(
    run: tuple[Path, FedMRGLearner], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference_files(run[0], None, None)
    assert len(expected) == 1
    for folder, named in ((run[0], "."), (run[0], "run.json"), (run[0] / "result", "adapter")):
        monkeypatch.chdir(folder)
        found = reference_files(Path(named), None, None)
        assert [path.resolve() for path in found] == [path.resolve() for path in expected]
