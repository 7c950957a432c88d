# SPDX-License-Identifier: Apache-2.0
"""`medflare rules` and `medflare methods`: every name a job can use; docs/reference/rules.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import answer, facts
from medflare.aggregation import RULES
from medflare.learners import registry
from medflare.models.adapters.registry import PEFT_METHODS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def methods() -> dict[str, dict]:
    return {m["name"]: m for m in facts("methods", "--jobs", ROOT / "jobs")}


def test_docs_rules_md_is_what_the_code_says() -> None:
    assert answer("rules", "--markdown") == (ROOT / "docs/reference/rules.md").read_text(encoding="utf-8"), (
        "docs/reference/rules.md is out of date: medflare rules --markdown > docs/reference/rules.md"
    )


def test_rules_lists_every_rule_with_what_it_needs_and_its_ids() -> None:
    rules = {rule["name"]: rule for rule in facts("rules")}
    assert set(rules) == set(RULES)
    assert rules["krum"]["needs"] == "individual"
    assert rules["krum"]["source"]["ids"] == [f"VG-{n}" for n in range(6, 11)]
    assert rules["krum"]["settings"][0] == {
        "name": "f",
        "default": 1,
        "allowed": "whole number, 0 or more",
        "says": "how many sites may send anything at all.",
    }
    assert rules["influence"]["sum_with"] == {"mode": "client"}
    assert rules["weighted_mean"]["streams"]


def test_methods_lists_every_method_with_its_jobs(methods: dict[str, dict]) -> None:
    assert set(methods) == set(registry.METHODS)
    assert methods["fedmrg"]["jobs"] == ["fedmrg"]
    assert methods["fed_medlora"]["jobs"] == ["fed_medlora", "fed_medlora_plus"]
    assert (methods["fedmrg"]["reads"], methods["fed_medlora"]["reads"]) == ("studies", "notes")
    assert "MRG-8" in methods["fedmrg"]["source"]["ids"]


def test_a_variant_says_what_it_changes_and_which_rules_fit(methods: dict[str, dict]) -> None:
    stack = methods["fed_medlora"]["variants"]["stack"]
    assert stack == {"changes": {"sharing": "stack"}, "rules": ["lora_stack"]}
    plain = methods["fed_medlora"]["variants"]["fed_medlora"]["rules"]
    assert {"krum", "influence", "influence (client)", "lora_product_svd"} <= set(plain)
    assert "lora_stack" not in plain


def test_methods_lists_what_adapter_jobs_can_take(methods: dict[str, dict]) -> None:
    assert methods["fedmrg"]["adapters"] == methods["fed_medlora"]["adapters"]
    assert not methods["fedvit_gpt2"]["adapters"]
    vera = methods["fedmrg"]["adapters"]["vera"]
    assert vera["source"]["paper"] == "Kopiczko et al. 2024"
    assert (vera["peft"], vera["dual"]) == (True, False)
    assert methods["fedmrg"]["adapters"]["prompt"]["source"]["ids"] == ["MRG-19"]
    assert not methods["fedmrg"]["adapters"]["bottleneck"]["peft"]
    assert {"fed_para", "fed_adalora", "fed_vera", "fed_prefix", "fed_dat"} <= set(
        methods["fedmrg"]["variants"]
    )


def test_the_page_on_adapters_names_every_method() -> None:
    text = (ROOT / "docs/methods/adapters.md").read_text(encoding="utf-8")
    assert [name for name in PEFT_METHODS if f"| `{name}` |" not in text] == []


def test_a_folder_without_jobs_is_no_error(tmp_path: Path) -> None:
    output = facts("methods", "--jobs", tmp_path)
    assert all(method["jobs"] == [] for method in output)


@pytest.mark.parametrize(
    ("command", "shown"), [("rules", "trimmed_mean"), ("methods", "token_classification")]
)
def test_people_get_a_table_and_an_example(command: str, shown: str) -> None:
    assert shown in answer(command)
    assert f"medflare {command} " in answer(command, "--help")
