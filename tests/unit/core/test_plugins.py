# SPDX-License-Identifier: Apache-2.0
"""Rules and readers of other packages: found by entry points, loaded only where the owner admits them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from command_line import facts, refusal
from medflare.aggregation import make_rule, rule_class
from medflare.core import plugins
from medflare.core.errors import ConfigError
from medflare.core.update import Update
from medflare.data.load import load_cohort
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import load_site_file
from medflare.evaluation.plugin_metrics import plugin_statistics
from medflare.evaluation.report_metrics import evaluate_reports
from medflare.learners.registry import get_method, known_method
from medflare.protections.registry import get_protection
from plugin_packages import example_package, install


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example package of the repository, as its pyproject.toml installs it; admitted by nobody."""
    with example_package(tmp_path, monkeypatch):
        yield tmp_path


def test_an_installed_package_is_not_imported_before_it_is_admitted(example: Path) -> None:
    with pytest.raises(ConfigError, match=r"package medflare-example, which is installed and not admitted"):
        rule_class("damped_mean")
    assert "medflare_example" not in sys.modules
    assert [(p["name"], p["admitted"]) for p in facts("plugins")] == [
        ("words_ratio", False),
        ("masking_of_five", False),
        ("sentence_csv", False),
        ("damped_mean", False),
    ]


def test_an_admitted_rule_aggregates(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.VARIABLE, "other, Medflare_Example")
    rule = make_rule("damped_mean", {"step": 0.25})
    rule.begin({"w": torch.zeros(2)})
    for site, value in (("a", 4.0), ("b", 8.0)):
        rule.add(site, Update(delta={"w": torch.full((2,), value)}, examples=10, metrics={}))
    assert rule.finish()["w"].tolist() == [1.5, 1.5]
    with pytest.raises(ConfigError, match="rule_settings"):
        make_rule("damped_mean", {"step": 2})


def test_a_sites_policy_admits_a_reader_and_nothing_else_does(example: Path) -> None:
    (example / "sentences.csv").write_text("sentence\nNo fever.\nSevere pain.\n")
    cohort = f"cohort: {{format: sentence_csv, root: {example}, tasks: []}}\n"
    (example / "site.yaml").write_text(cohort)
    assert "policy: {plugins: [medflare-example]}" in refusal(2, "cohort", "inspect", example / "site.yaml")
    (example / "site.yaml").write_text(cohort + "policy: {plugins: [medflare-example]}\n")
    (site,) = load_site_file(example / "site.yaml").values()
    assert [note.text for note in load_cohort(site).notes] == ["No fever.", "Severe pain."]


def test_a_setting_that_the_packages_reader_does_not_read_is_refused(example: Path) -> None:
    (example / "site.yaml").write_text(
        f"cohort: {{format: sentence_csv, root: {example}, tasks: [], sections: findings}}\n"
        "policy: {plugins: [medflare-example]}\n"
    )
    with pytest.raises(ConfigError, match="does not read sections"):
        load_site_file(example / "site.yaml")


def test_a_metric_is_measured_where_its_package_is_admitted(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = (["no effusion seen", "clear"], ["no effusion", "clear lungs here"])
    assert plugin_statistics(*drafts, known=[]) == ({}, {})
    monkeypatch.setenv(plugins.VARIABLE, "medflare-example")
    statistics, skipped = plugin_statistics(*drafts, known=[])
    assert statistics["words_ratio"].value == pytest.approx((2 / 3 + 3) / 2)
    assert skipped == {}
    monkeypatch.setenv("PATH", "")  # no Java for METEOR
    codes = [[0] * 14] * 2
    assert "words_ratio" in evaluate_reports(*drafts, codes, codes, replicates=5).estimates
    assert plugin_statistics(*drafts, known=["words_ratio"]) == ({}, {})


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("builtins:sorted", "failed with TypeError"),
        ("json:decoder", "is no function"),
        ("operator:ne", "expected a finite number for each of 2 records"),
        ("no_such_module:x", "cannot be loaded"),
    ],
)
def test_a_metric_that_fails_is_skipped_and_tells_nothing_of_a_report(
    target: str, reason: str, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(example / "site-packages", "odd", {"medflare.metrics": {"odd_metric": target}})
    monkeypatch.setenv(plugins.VARIABLE, "odd")
    statistics, skipped = plugin_statistics(["Mrs Miller", "b"], ["c", "d"], known=[])
    assert statistics == {}
    assert reason in skipped["odd_metric"]
    assert "Miller" not in skipped["odd_metric"]


def test_a_protection_is_known_where_its_package_is_admitted(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="installed and not admitted"):
        get_protection("masking_of_five")
    with pytest.raises(ConfigError, match="'masks' is none of none, masking, he"):
        get_protection("masks")
    monkeypatch.setenv(plugins.VARIABLE, "medflare-example")
    assert get_protection("masking_of_five").seals == ["mask"]
    assert PolicyConfig(require=("masking_of_five",)).require == ("masking_of_five",)
    with pytest.raises(ValueError, match="masking_of_six: no such protection"):
        PolicyConfig(require=("masking_of_six",))


def test_a_protection_must_have_the_name_and_the_seal_of_its_entry_point(
    example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "medflare.protections.masking:Masking"
    install(example / "site-packages", "odd", {"medflare.protections": {"mine": target}})
    monkeypatch.setenv(plugins.VARIABLE, "odd")
    with pytest.raises(ConfigError, match="no Protection of that name whose seal is 'mine' or one of"):
        get_protection("mine")


def test_a_name_of_medflare_means_medflares_own(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(example / "site-packages", "thief", {"medflare.rules": {"fedavg": "thief:Rule"}})
    monkeypatch.setenv(plugins.VARIABLE, "thief")
    assert rule_class("fedavg").__module__ == "medflare.aggregation.weighted_mean"


def test_two_packages_with_one_name_are_an_error(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(example / "site-packages", "twin", {"medflare.rules": {"damped_mean": "twin:Rule"}})
    monkeypatch.setenv(plugins.VARIABLE, "twin,medflare-example")
    with pytest.raises(ConfigError, match="offered by the packages medflare-example and twin"):
        rule_class("damped_mean")


@pytest.mark.parametrize(
    ("group", "name", "load"),
    [("medflare.rules", "odd_rule", rule_class), ("medflare.methods", "odd_method", get_method)],
)
@pytest.mark.parametrize("target", ["json:dumps", "no_such_module:x"])
def test_what_a_package_offers_must_keep_the_contract(
    group: str, name: str, load: object, target: str, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(example / "site-packages", "odd", {group: {name: target}})
    monkeypatch.setenv(plugins.VARIABLE, "odd")
    with pytest.raises(ConfigError, match=r"what its package offers is no|cannot be loaded"):
        load(name)  # type: ignore[operator]


def test_a_method_nobody_admits_is_unknown_to_a_server(example: Path) -> None:
    install(example / "site-packages", "odd", {"medflare.methods": {"odd_method": "json:dumps"}})
    assert known_method("odd_method") is None
    assert known_method("fedmrg") is not None


def test_a_policy_that_is_parsed_again_reads_no_package_again(monkeypatch: pytest.MonkeyPatch) -> None:
    PolicyConfig(require=("mask",))
    monkeypatch.setattr(plugins, "entry_points", lambda **_: pytest.fail("read again"))
    assert PolicyConfig(require=("mask", "he|mask")).require == ("mask", "he|mask")
