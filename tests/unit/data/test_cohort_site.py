# SPDX-License-Identifier: Apache-2.0
"""site.yaml: everything wrong is said at once; patients never cross splits; hospitals can be pooled."""

from __future__ import annotations

from pathlib import Path

import cohort_folders as folders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from medflare.core.errors import ConfigError
from medflare.data import readers
from medflare.data.cohort_summary import summarise
from medflare.data.load import load_cohort
from medflare.data.samples import open_samples
from medflare.data.settings.cohort import CohortConfig, SplitConfig
from medflare.data.settings.formats import FORMATS, STUDY_FORMATS
from medflare.data.settings.site import SiteConfig, load_site, load_site_file
from medflare.data.splits import assign_splits, one_split_per_patient
from site_builders import read_cohort

SITES = Path(__file__).parents[3] / "jobs" / "fedmrg" / "sites" / "cxr_multisite.yaml"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_all_errors_of_a_file_come_together(tmp_path: Path) -> None:
    path = write(
        tmp_path / "site.yaml",
        "cohort: {format: manfest, root: ., colums: {}, max_skipped: 2}\ndevice: tpu\nthreads: 0\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_site_file(path)
    message = str(caught.value)
    assert "5 setting(s)" in message
    assert "Did you mean 'columns'?" in message
    for word in ("site.yaml", "manifest, mimic_cxr", "max_skipped", "device", "threads"):
        assert word in message


def test_a_setting_that_the_format_does_not_read_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "site.yaml", "cohort: {format: r2gen, root: ., sections: findings}\n")
    with pytest.raises(ConfigError, match="r2gen does not read sections"):
        load_site_file(path)


@pytest.mark.parametrize("format", sorted(set(FORMATS) - STUDY_FORMATS))
def test_a_setting_of_images_is_refused_where_texts_are_read(format: str) -> None:
    of_images = {"scanner": {}, "study_images": "first", "text_rules": "r2gen"}
    with pytest.raises(ValidationError, match=f"format {format} does not read {', '.join(of_images)};"):
        CohortConfig.model_validate({"format": format, "root": ".", **of_images})


def test_the_formats_of_studies_are_those_whose_readers_make_them() -> None:
    folder = Path(readers.__file__ or "").parent
    made = {name for name in FORMATS if "Study(" in (folder / f"{name}.py").read_text("utf-8")}
    assert made == STUDY_FORMATS


def test_chexbert_without_weights_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "site.yaml", "cohort: {format: manifest, root: ., labels: chexbert}\n")
    with pytest.raises(ConfigError, match="chexbert_folder"):
        load_site_file(path)


def test_relative_root_counts_from_the_file(tmp_path: Path) -> None:
    folders.manifest(tmp_path / "data")
    path = write(tmp_path / "site.yaml", "cohort: {format: manifest, root: data}\nbackbone: {folder: llm}\n")
    site = load_site(path, "site-1")
    assert (site.name, len(load_cohort(site).studies)) == ("site-1", 6)
    assert site.backbone.folder == tmp_path.resolve() / "llm"
    assert len(load_cohort(SiteConfig(name="again", cohort=site.cohort)).studies) == 6


def test_root_expands_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "site.yaml", "cohort: {format: manifest, root: '${HOSPITAL_X}/data'}\n")
    monkeypatch.delenv("HOSPITAL_X", raising=False)
    with pytest.raises(ConfigError, match="HOSPITAL_X is not set"):
        load_site_file(path)
    monkeypatch.setenv("HOSPITAL_X", "/somewhere")
    assert load_site(path, "x").cohort[0].root == Path("/somewhere/data")


def test_unknown_site_lists_the_names(tmp_path: Path) -> None:
    cohort = "{cohort: {format: manifest, root: .}}"
    path = write(tmp_path / "site.yaml", f"sites:\n  north: {cohort}\n  south: {cohort}\n")
    assert set(load_site_file(path)) == {"north", "south"}
    assert load_site(path, "south").name == "south"
    with pytest.raises(ConfigError, match=r"no site 'west'\. It has: north, south"):
        load_site(path, "west")


def test_labels_and_text_rules_are_settings(tmp_path: Path) -> None:
    root = folders.manifest(tmp_path)
    plain = read_cohort("manifest", root, text_rules="r2gen")
    assert plain.studies[0].report == "the heart is enlarged . no pleural effusion or pneumothorax ."


def test_reports_that_the_labeller_does_not_understand_are_counted(tmp_path: Path) -> None:
    rows = [row | {"report": "Tubular shadow behind the sternum."} for row in folders.manifest_rows()]
    for row in rows:
        row.pop("labels", None)
    assert summarise(read_cohort("manifest", folders.manifest(tmp_path, rows)))["reports_not_understood"] == 6
    rows[0]["report"] = "No effusion."
    assert summarise(read_cohort("manifest", folders.manifest(tmp_path, rows)))["reports_not_understood"] == 5


def test_pooled_hospitals_do_not_share_patients_or_studies(tmp_path: Path) -> None:
    first, second = folders.manifest(tmp_path / "a"), folders.manifest(tmp_path / "b")
    cohorts = [CohortConfig(format="manifest", root=root) for root in (first, second)]
    cohort = load_cohort(SiteConfig(cohort=cohorts))
    assert len({study.study_id for study in cohort.studies}) == 12
    assert summarise(cohort)["patients"] == 10
    assert len(open_samples(SiteConfig(cohort=cohorts), 16)) == 12


def test_the_same_folder_pooled_with_itself_keeps_its_patients(tmp_path: Path) -> None:
    root = folders.manifest(tmp_path)
    halves = [CohortConfig(format="manifest", root=root, select={"sex": sex}) for sex in "FM"]
    cohort = load_cohort(SiteConfig(cohort=halves))
    assert (len(cohort.studies), summarise(cohort)["patients"]) == (6, 5)


def test_limit_takes_whole_patients_and_is_stable(tmp_path: Path) -> None:
    first, again = (read_cohort("manifest", folders.manifest(tmp_path), limit=3).studies for _ in range(2))
    assert 1 <= len(first) <= 3
    assert first == again


def test_a_patient_in_two_splits_goes_to_the_most_common_one(tmp_path: Path) -> None:
    rows = folders.manifest_rows()
    rows[4]["split"] = "train"  # patient 15 has one study in train, one in test
    cohort = read_cohort("manifest", folders.manifest(tmp_path, rows))
    assert [study.split for study in cohort.studies[4:]] == ["test", "test"]
    assert summarise(cohort)["patients_in_two_splits"] == 1


patients = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=60, unique=True)


@pytest.mark.parametrize(("train", "accepted"), [(0.666667, True), (0.6666, False), (0.7, False)])
def test_shares_of_a_split_sum_to_one_but_for_rounding(train: float, accepted: bool) -> None:
    if accepted:
        SplitConfig(train=train, val=0.166667, test=0.166667)
    else:
        with pytest.raises(ValueError, match="must be 1, they sum to"):
            SplitConfig(train=train, val=0.166667, test=0.166667)


@settings(deadline=None)
@given(patients, st.integers(0, 99))
def test_assignment_depends_on_nothing_but_patient_and_seed(names: list[str], seed: int) -> None:
    shares = SplitConfig(train=0.6, val=0.2, test=0.2, seed=seed)
    given_splits = assign_splits(names, shares)
    assert given_splits == assign_splits(sorted(names, reverse=True), shares)
    assert set(given_splits) == set(names)
    if len(names) >= 3:
        assert set(given_splits.values()) == {"train", "val", "test"}


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["train", "val", "test"])), max_size=40))
def test_every_patient_ends_in_one_of_its_own_splits(pairs: list[tuple[str, str]]) -> None:
    chosen, moved = one_split_per_patient(pairs)
    assert all((patient, split) in pairs for patient, split in chosen.items())
    assert moved == sum(len({s for p, s in pairs if p == patient}) > 1 for patient in chosen)
    for patient, split in chosen.items():
        counts = {name: pairs.count((patient, name)) for name in ("train", "val", "test")}
        assert counts[split] == max(counts.values())
        assert split == "test" or counts["test"] < counts[split]


def test_shares_come_out_roughly_and_a_new_patient_moves_nobody() -> None:
    names = [f"p{index}" for index in range(2000)]
    before = assign_splits(names, SplitConfig())
    assert abs(sum(split == "train" for split in before.values()) / 2000 - 0.8) < 0.03
    after = assign_splits([*names, "newcomer"], SplitConfig())
    assert all(after[name] == before[name] for name in names)


@pytest.mark.parametrize("name", ["radiopaedia", "eurorad", "journals"])
def test_public_radiographs_run_through_every_stage(
    name: str, public_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (public_data / "cxr_multisite").is_dir():
        pytest.skip("cxr_multisite is not on this machine")
    monkeypatch.setenv("MEDFLARE_DATA", str(public_data))
    samples = open_samples(load_site(SITES, name), 48, tmp_path)
    expected = {"radiopaedia": (128, 6), "eurorad": (59, 2), "journals": (16, 7)}[name]
    assert (len(samples), samples.skipped()["empty report"]) == expected
    assert all(count > 0 for count in samples.examples().values())
    assert samples.codes.shape == (expected[0], 14)
    pictures = samples.images(range(len(samples)))
    assert 0.1 < float(pictures.mean()) < 0.8
