# SPDX-License-Identifier: Apache-2.0
"""A hospital's rules: what each refuses, in words that name the rule and the file."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from medflare.core.errors import ConfigError
from medflare.data.settings.policy import PolicyConfig, parse_size
from medflare.data.settings.site import load_site, load_site_file
from medflare.egress.policy import Policy, PolicyError, in_words

ASKED: dict[str, Any] = {
    "job": "fedmrg-2026",
    "method": "fedmrg",
    "protections": [],
    "sites": 3,
    "partners": ["site-2", "site-3"],
    "rounds": 50,
    "limit": 32,
}
PERSON = {"job": "fedmrg", "submitter": "lead@hospital-a.org", "organisation": "hospital_a", "role": "lead"}


def policy(**rules: Any) -> Policy:
    return Policy(rules=PolicyConfig(**rules), file=Path("/ward-7/local/site.yaml"))


def refusing(check: Callable[..., None], *asked: Any, **named: Any) -> list[str]:
    """The rules that refuse what is asked."""
    try:
        check(*asked, **named)
    except PolicyError as error:
        return [refusal.rule.removeprefix("policy.") for refusal in error.refusals]
    return []


def test_without_rules_every_job_is_admitted() -> None:
    assert refusing(policy().admit, **ASKED) == []
    assert refusing(policy().submitted, **PERSON) == []
    assert refusing(policy().update, ["anything"], []) == []
    assert refusing(policy().volume, 10**12, 10**12) == []


@pytest.mark.parametrize(
    ("rules", "asked", "rule", "found"),
    [
        ({"jobs": ["fedvit*"]}, {}, "jobs", "job 'fedmrg-2026' is not admitted; allowed: fedvit*"),
        ({"jobs": []}, {}, "jobs", "allowed: nothing"),
        (
            {"methods": ["fed_medlora"]},
            {},
            "methods",
            "method 'fedmrg' is not admitted; allowed: fed_medlora",
        ),
        ({"require": ["mask"]}, {}, "require", "must have the protection mask, they have none"),
        ({"require": ["mask"]}, {"protections": ["he"]}, "require", "mask, they have he"),
        ({"min_sites": 4}, {}, "min_sites", "3 sites take part, at least 4 must"),
        ({"partners": ["site-2"]}, {"partners": ["site-2", "site-9"]}, "partners", "site-9 would take part"),
        ({"most_rounds": 20}, {}, "most_rounds", "the run has 50 rounds, at most 20"),
        ({"min_examples": 100}, {}, "min_examples", "an evaluation is about fewer than 100 examples"),
    ],
)
def test_a_job_that_asks_for_what_a_rule_forbids_is_refused(
    rules: Any, asked: Any, rule: str, found: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(**rules).admit(**ASKED | asked)
    assert [refusal.rule for refusal in caught.value.refusals] == [f"policy.{rule}"]
    assert found in str(caught.value)
    assert "site.yaml" in str(caught.value)
    assert "ward-7" not in str(caught.value), "a folder of the hospital would leave with it"


@pytest.mark.parametrize(
    "rules",
    [
        {"jobs": ["fedmrg*", "fedtar"]},
        {"jobs": "fedmrg-????"},
        {"methods": ["fedmrg"]},
        {"partners": ["site-2", "site-3", "site-4"]},
        {"min_sites": 3, "most_rounds": 50, "min_examples": 32},
    ],
)
def test_a_job_at_the_limit_is_admitted(rules: Any) -> None:
    assert refusing(policy(**rules).admit, **ASKED) == []


def test_more_protection_than_required_is_never_refused() -> None:
    for required in ([], ["mask"], ["he"], ["mask|he"]):
        for protections in (["mask", "dp"], ["he", "dp"]):
            if not required or set(required[0].split("|")) & set(protections):
                result = refusing(policy(require=required).admit, **ASKED | {"protections": protections})
                assert result == [], (required, protections)


def test_all_rules_that_refuse_are_told_at_once() -> None:
    strict = policy(jobs=["x"], methods=["y"], require=["he"], min_sites=9, most_rounds=1)
    assert refusing(strict.admit, **ASKED) == ["jobs", "methods", "require", "min_sites", "most_rounds"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("submitters", "*@hospital-b.org"), ("organisations", "coordinator"), ("roles", "project_admin")],
)
def test_a_job_of_somebody_else_is_refused(key: str, value: str) -> None:
    with pytest.raises(PolicyError, match=f"policy.{key}: .*is not admitted; allowed: "):
        policy(**{key: value}).submitted(**PERSON)


def test_the_log_of_the_site_has_the_folder_that_the_text_leaves_out() -> None:
    with pytest.raises(PolicyError) as caught:
        policy(min_sites=9).admit(**ASKED)
    assert "/ward-7/local/site.yaml" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64 MB", 64_000_000),
        ("1.5GiB", 3 * 2**29),
        ("2kb", 2000),
        ("3 K", None),
        ("-1", None),
    ],
)
def test_a_size_is_a_number_with_a_unit(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(ValueError, match="write a number of bytes, or one with kB"):
            parse_size(text)
    else:
        assert parse_size(text) == size


def site_yaml(folder: Path, rules: Any) -> Path:
    document = {"cohort": {"format": "manifest", "root": "."}, "policy": rules}
    (folder / "site.yaml").write_text(yaml.safe_dump(document))
    return folder / "site.yaml"


def test_misspelt_keys_and_values_are_reported_together_with_the_file(tmp_path: Path) -> None:
    file = site_yaml(
        tmp_path,
        {"max_byte_per_round": 5, "methds": ["fedmrg"], "require": ["masks"], "min_sites": 0, "metrics": 3},
    )
    with pytest.raises(ConfigError) as caught:
        load_site_file(file)
    text = str(caught.value)
    assert str(file) in text
    for said in (
        "policy.max_byte_per_round: no such setting. Did you mean 'max_bytes_per_round'?",
        "policy.methds: no such setting. Did you mean 'methods'?",
        "policy.require: masks: no such protection; there are: mask, he",
        "policy.min_sites: Input should be greater than or equal to 1",
        "policy.metrics",
    ):
        assert said in text


def test_masks_and_encryption_cannot_both_be_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write \['mask\|he'\] to accept either"):
        load_site_file(site_yaml(tmp_path, {"require": ["mask", "he"]}))


def test_a_policy_in_site_yaml_is_read_as_it_stands(tmp_path: Path) -> None:
    rules = {"jobs": "fedmrg*", "require": ["mask|he"], "max_bytes_per_round": "64 MB", "metrics": ["loss"]}
    site_policy = load_site(site_yaml(tmp_path, rules), "site-1").policy
    assert (
        site_policy.model_dump()
        == PolicyConfig(
            jobs=("fedmrg*",), require=("mask|he",), max_bytes_per_round=64_000_000, metrics=("loss",)
        ).model_dump()
    )


def test_a_site_without_policy_has_the_default_one(tmp_path: Path) -> None:
    assert load_site(site_yaml(tmp_path, {}), "site-1").policy == PolicyConfig()


def test_every_rule_that_differs_from_its_default_is_put_into_words() -> None:
    told = {
        "jobs": ("fedmrg*", "Jobs only: fedmrg*."),
        "methods": ("fedmrg", "Methods only: fedmrg."),
        "submitters": ("lead@a.org", "Submitters only: lead@a.org."),
        "organisations": ("hospital_a", "Organisations only: hospital_a."),
        "roles": ("lead", "Roles only: lead."),
        "unsigned_jobs": (True, "Jobs that no admin of the federation signed may run."),
        "require": ("mask|he", "Every update must have: mask or he."),
        "min_sites": (3, "At least 3 sites must take part."),
        "partners": (("site-2", "site-3"), "Sites it takes part with: site-2, site-3."),
        "plugins": ("our-package", "Packages whose code may run: our-package."),
        "min_site_noise": (0.5, "Updates leave in masked sums with noise of 0.5 times a site's norm."),
        "dp": (
            {"epsilon": 3.0, "delta": 1e-5},
            "Patients train with differential privacy only, up to an epsilon of 3 at delta 1e-05 over all "
            "jobs.",
        ),
        "min_threshold": (3, "Updates leave in masked sums, which at least 3 sites open together."),
        "min_examples": (20, "Nothing leaves that is about fewer than 20 examples."),
        "most_rounds": (50, "A run may have at most 50 rounds."),
        "max_bytes_per_round": (10**7, "At most 10,000,000 bytes may leave in a round."),
        "tensors": ("adapter.*", "Tensors only: adapter.*."),
        "resume": (False, "No job may go on with the run of an earlier one."),
        "knowledge_sketch": ("deny", "No sketch of its knowledge graph may leave."),
        "knowledge_exact": (
            "allow",
            "It tells the sizes of its knowledge graph and of what that shares with each other's.",
        ),
        "train_losses": (True, "Losses of training examples may be measured for a job."),
        "features": ("prototypes", "Means of image features may leave."),
        "min_prototype": (30, "A mean of image features is of 30 images or more."),
        "metrics": ("none", "Metrics that may leave: none."),
    }
    assert set(told) == set(PolicyConfig.model_fields)
    for key, (value, words) in told.items():
        assert in_words(policy(**{key: value})) == [words]


def test_the_digest_tells_whether_rules_changed() -> None:
    assert policy().digest() == policy(min_sites=1).digest() != policy(min_sites=2).digest()
