# SPDX-License-Identifier: Apache-2.0
"""Rules and readers of other packages: found by entry points, loaded only where the owner admits them."""

from __future__ import annotations

import sys
import tomllib
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
from medflare.data.settings.site import load_site_file
from medflare.learners.registry import get_method, known_method

EXAMPLE = Path(__file__).parents[3] / "examples" / "medflare_example"


def install(folder: Path, package: str, groups: dict[str, dict[str, str]]) -> None:
    """Write what pip writes of a package's metadata."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [line for group, names in groups.items() for line in _section(group, names)]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _section(group: str, names: dict[str, str]) -> list[str]:
    return [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example package of the repository, as its pyproject.toml installs it; admitted by nobody."""
    described = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(tmp_path / "site-packages", described["name"], described["entry-points"])
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    monkeypatch.setattr(plugins, "_admitted", set())
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("medflare_example")]:
        del sys.modules[name]


def test_an_installed_package_is_not_imported_before_it_is_admitted(example: Path) -> None:
    with pytest.raises(ConfigError, match=r"package medflare-example, which is installed and not admitted"):
        rule_class("damped_mean")
    assert "medflare_example" not in sys.modules
    assert [(p["name"], p["admitted"]) for p in facts("plugins")] == [
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
