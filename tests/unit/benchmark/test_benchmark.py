# SPDX-License-Identifier: Apache-2.0
"""`medflare benchmark fl-mrg` on folders with the layouts and file names of the downloads."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmark_folders import write_chexpert_plus, write_iu, write_mimic
from typer.testing import CliRunner

from command_line import refusal
from medflare.cli.main import app
from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site_file
from medflare.models.generators.writing import ReportVocabulary


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {
        "--mimic-cxr": write_mimic(folder / "mimic-cxr-jpg", 150),
        "--iu-xray": write_iu(folder / "iu_xray"),
        "--chexpert-plus": write_chexpert_plus(folder / "chexpert-plus", 60),
    }


def command(out: Path, sources: dict[str, Path], *options: str) -> Any:
    roots = [part for name, root in sources.items() for part in (name, str(root))]
    return CliRunner().invoke(app, ["benchmark", "fl-mrg", str(out), *roots, *options])


def rows(out: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return (client or test set, line of its manifest)."""
    return [
        (path.parent.name, json.loads(line))
        for path in sorted(out.glob("*/manifest.jsonl"))
        for line in path.read_text().splitlines()
    ]


def built(out: Path, sources: dict[str, Path], *options: str) -> dict[str, Any]:
    result = command(out, sources, *options)
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads((out / "benchmark.json").read_text())
    return facts


@pytest.fixture(scope="module")
def benches(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Setting -> a benchmark of ten clients."""
    folder = tmp_path_factory.mktemp("benches")
    for setting in ("random", "cluster"):
        built(folder / setting, sources, "--setting", setting)
    return {setting: folder / setting for setting in ("random", "cluster")}


@pytest.mark.parametrize("setting", ["random", "cluster"])
def test_ten_clients_of_mimic_and_two_common_test_sets(setting: str, benches: dict[str, Path]) -> None:
    out = benches[setting]
    facts = json.loads((out / "benchmark.json").read_text())
    lines = rows(out)
    places = {name for name, _ in lines}
    assert places == {*(f"client-{n}" for n in range(1, 11)), "mimic-cxr-test", "iu-xray-unseen"}
    at: dict[str, set[str]] = {}
    for name, row in lines:
        at.setdefault(row["patient_id"], set()).add(f"{name}/{row['split']}")
        number = int(row["patient_id"].rsplit("-", 1)[1].removeprefix("CXR"))
        if row["patient_id"].startswith("mimic"):
            assert ((number - 10_000_032) % 25 == 0) == (row["split"] == "test"), (
                "the test set is MIMIC's own"
            )
            assert (number - 10_000_032) % 25 != 1, "MIMIC's validation studies are in no client (BM-1)"
    assert all(len(where) == 1 for where in at.values()), "a patient is at one place and in one split"
    counts = Counter(split for _, split in ((n, r["split"]) for n, r in lines))
    assert 0.05 < counts["val"] / (counts["val"] + counts["train"]) < 0.2
    sizes = [row["patients"] for row in facts["clients"].values()]
    assert max(sizes) - min(sizes) <= 1
    assert facts["splits"]["iu-xray-unseen/test"]["images"] == 70
    site = load_site_file(out / "site.yaml")
    assert list(site) == [f"client-{n}" for n in range(1, 11)]
    assert len({config.cohort[0].scanner.model_dump_json() for config in site.values()}) > 5  # type: ignore[union-attr]
    cohort = load_cohort(site["client-3"])
    assert all(path.is_file() for study in cohort.studies for path in study.images)
    assert {study.split for study in cohort.studies} == {"train", "val"}
    assert list(load_site_file(out / "test.yaml")) == ["iu-xray-unseen", "mimic-cxr-test"]
    for picture in ("label_shares", "report_lengths", "vocabulary_overlap"):
        assert (out / f"{picture}.png").stat().st_size > 5000
    assert ReportVocabulary(out / "vocabulary").size == facts["vocabulary"] > 40


def test_clusters_differ_more_than_random_clients(benches: dict[str, Path]) -> None:
    mean = {}
    for setting, out in benches.items():
        clients = json.loads((out / "benchmark.json").read_text())["clients"]
        mean[setting] = sum(row["divergence"] for row in clients.values()) / len(clients)
    assert mean["cluster"] > 1.5 * mean["random"]


def test_the_same_command_writes_the_same_files_and_goes_on_from_its_index(
    benches: dict[str, Path], sources: dict[str, Path], tmp_path: Path
) -> None:
    first = json.loads((benches["random"] / "benchmark.json").read_text())
    assert built(benches["random"].with_name("again"), sources) == first
    result = command(benches["random"].with_name("again"), sources, "--seed", "1")
    assert "mimic_cxr: the index is there" in result.output
    other = json.loads((benches["random"].with_name("again") / "benchmark.json").read_text())
    assert other["splits"] != first["splits"]
    assert other["splits"]["mimic-cxr-test/test"] == first["splits"]["mimic-cxr-test/test"]


def test_dirichlet_clients_hold_as_many_images_as_asked(sources: dict[str, Path], tmp_path: Path) -> None:
    spread = {}
    for alpha in ("0.1", "0.9"):
        options = ["--setting", "dirichlet", "--alpha", alpha, "--client-images", "40", "70"]
        clients = built(tmp_path / alpha, sources, *options)["clients"]
        assert len(clients) == 10
        assert all(40 <= row["images"] <= 70 for row in clients.values())
        spread[alpha] = sum(row["divergence"] for row in clients.values())
    assert spread["0.1"] > spread["0.9"]
    result = command(tmp_path / "full", sources, "--setting", "dirichlet")
    assert result.exit_code == 2
    assert "10 clients of at least 4000 images need 40000" in result.output
    assert not list(tmp_path.glob("full/*"))


def test_three_clients_each_of_two_hospitals_with_findings_of_twenty_words(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    facts = built(tmp_path / "real", sources, "--setting", "real-world", "--pairs", "120")
    names = [f"{source}-{n}" for source in ("chexpert", "mimic") for n in (1, 2, 3)]
    assert list(facts["clients"]) == names
    for source in ("chexpert", "mimic"):
        images = sum(row["images"] for name, row in facts["clients"].items() if name.startswith(source))
        assert 120 <= images < 140
    lines = rows(tmp_path / "real")
    assert min(len(row["report"].split()) for _, row in lines) >= 20
    assert {name for name, row in lines if row["split"] == "test"} == {
        *("chexpert-plus-test", "mimic-cxr-test", "iu-xray-unseen")
    }


def test_fedvit_gpt2_deals_40_30_20_and_10_per_cent_of_each_split(tmp_path: Path) -> None:
    iu = write_iu(tmp_path / "iu", 40, 20, 10)
    facts = built(tmp_path / "fedvit", {"--iu-xray": iu}, "--setting", "fedvit-gpt2")
    images = {place: counts["images"] for place, counts in facts["splits"].items()}
    assert [images[f"client-{n}/train"] for n in (1, 2, 3, 4)] == [32, 24, 16, 8]
    assert [images[f"client-{n}/val"] for n in (1, 2, 3, 4)] == [16, 12, 8, 4]
    assert images["iu-xray-test/test"] == 20
    assert facts["equals_the_published_split"] is False
    assert facts["published_images"] == {"train": 4138, "val": 592, "test": 1180}


def test_longitudinal_clients_hold_visits_in_order(sources: dict[str, Path], tmp_path: Path) -> None:
    only = {"--mimic-cxr": sources["--mimic-cxr"]}
    facts = built(tmp_path / "visits", only, "--setting", "longitudinal")
    assert list(facts["clients"]) == [f"client-{n}" for n in (1, 2, 3, 4)]
    document = yaml.safe_load((tmp_path / "visits/site.yaml").read_text())
    assert document["sites"]["client-1"]["cohort"]["visits"] == {}
    studies = load_cohort(load_site_file(tmp_path / "visits/site.yaml")["client-1"]).studies
    visits: dict[str, list[int | None]] = {}
    for study in studies:
        visits.setdefault(study.patient_id, []).append(study.visit)
    assert min(map(len, visits.values())) >= 2
    assert all(sorted(map(int, numbers)) == list(range(1, len(numbers) + 1)) for numbers in visits.values())  # type: ignore[arg-type]
    assert {study.split for study in studies} == {"train", "val", "test"}


def test_what_is_missing_is_named_with_where_it_is_had_from(tmp_path: Path) -> None:
    mimic, iu = write_mimic(tmp_path / "mimic", 10), write_iu(tmp_path / "iu")
    good = {"--mimic-cxr": mimic, "--iu-xray": iu}

    def refused(code: int, sources: dict[str, Path], *options: str) -> str:
        result = command(tmp_path / "out", sources, *options)
        assert result.exit_code == code, result.output
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob("out.index/*.partial"))
        return " ".join(result.output.split())

    text = refused(2, {"--mimic-cxr": mimic})
    assert "--setting random needs --iu-xray" in text
    text = refused(2, good, "--setting", "real-world")
    assert "--chexpert-plus" in text
    assert "alpha" in refused(2, good, "--setting", "dirichlet", "--alpha", "3")
    text = refused(3, good | {"--mimic-cxr": tmp_path / "nowhere"})
    assert "nowhere" in text
    assert "physionet.org/content/mimic-cxr-jpg" in text
    (tmp_path / "empty").mkdir()
    text = refused(3, {"--iu-xray": tmp_path / "empty"}, "--setting", "fedvit-gpt2")
    assert "annotation.json" in text
    picture = next((mimic / "files").rglob("*.jpg"))
    picture.unlink()
    assert f"{picture.name}" in refused(3, good)
    picture.touch()
    lists = mimic / "mimic-cxr-2.0.0-split.csv.gz"
    content = gzip.decompress(lists.read_bytes())
    lists.write_bytes(gzip.compress(content.replace(b"dicom_id", b"image_id")))
    text = refused(3, good)
    assert "has no column dicom_id" in text
    assert "another version" in text
    lists.write_bytes(gzip.compress(content.replace(b",split", b",split,split", 1)))
    assert "has the column split more than once" in refused(3, good)
    lists.write_bytes(gzip.compress(content.replace(b",validate", b",holdout")))
    text = refused(3, good)
    assert "has the split 'holdout'; expected train, validate or test" in text
    lists.write_bytes(gzip.compress(content)[:200])
    assert "Download it again" in refused(3, good)
    lists.write_bytes(gzip.compress(content))
    for report in (mimic / "files").rglob("*.txt"):
        report.unlink()
    text = refused(3, good)
    assert "p10/p10000032/s50414267.txt" in text
    assert "--reports" in text
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").touch()
    assert "holds no benchmark" in " ".join(command(tmp_path / "out", good).output.split())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--alpha", 0.2), "alpha has no effect, as setting is 'random'"),
        (("--setting", "cluster", "--client-images", 10, 20), "client_images has no effect, as setting is"),
        (("--pairs", 5), "pairs has no effect"),
        (("--demographics", "p.csv"), "demographics has no effect"),
        (("--setting", "fedvit-gpt2", "--clients", 3), "clients has no effect, as setting is 'fedvit-gpt2'"),
    ],
)
def test_an_option_of_another_setting_is_refused(
    tmp_path: Path, options: tuple[object, ...], said: str
) -> None:
    """Before, --clients 3 of the real-world setting made six without a word."""
    sources = ("--mimic-cxr", tmp_path / "m", "--iu-xray", tmp_path / "i")
    assert said in refusal(2, "benchmark", "fl-mrg", tmp_path / "out", *sources, *options)
    assert not (tmp_path / "out").exists()


def test_alpha_of_questions_is_dirichlets(tmp_path: Path) -> None:
    asked = ("benchmark", "questions", tmp_path / "out", "--sources", tmp_path / "x.yaml")
    assert "alpha has no effect, as setting is 'class'" in refusal(
        2, *asked, "--setting", "class", "--alpha", 0.3
    )
