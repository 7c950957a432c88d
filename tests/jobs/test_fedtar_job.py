# SPDX-License-Identifier: Apache-2.0
"""jobs/fedtar: every line of its README is a job, and settings that do not go together are refused.

A small run is in test_simulated_jobs.py.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from medflare.core.errors import ConfigError
from medflare.core.option_values import read_pairs
from medflare.recipes.job_check import check_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override

JOB = Path(__file__).parents[2] / "jobs/fedtar"


def test_the_committed_job_is_sound_and_says_visits_alike() -> None:
    job = read_job(JOB)
    check_job(job)
    assert job.workflow == "temporal"
    assert job.controller["mixture"] == job.settings["mixture"]


# ---- the lines of the README -------------------------------------------------------------------------------


def lines() -> dict[str, list[str]]:
    """Name of a run -> its `--set`, from the README's table; the six rules have a dot before their names."""
    rows = re.findall(
        r"^\| ([^|]+) \| ((?:`[a-z_.]+=[^`]+` ?)+)[^|]*\|$", (JOB / "README.md").read_text(), re.M
    )
    return {name.strip(): re.findall(r"`([^`]+)`", row) for name, row in rows}


RULES = [name for name in lines() if name.startswith("·")]
OTHERS = [name for name in lines() if not name.startswith(("·", "pooled", "sequential"))]


def test_the_readme_has_six_baselines_two_ways_and_two_ablations() -> None:
    assert len(RULES) == 6
    assert len([name for name in OTHERS if "Table 2" in name]) == 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("way", "workflow"), [("pooled, all of them", "rounds"), ("sequential, all of them", "temporal")]
)
def test_every_baseline_of_the_readme_is_a_job(way: str, workflow: str, rule: str) -> None:
    job = override(read_job(JOB), read_pairs([*lines()[way], *lines()[rule]]))
    check_job(job)
    assert job.workflow == workflow
    assert job.aggregation["rule"] == rule.removeprefix("· ").lower()
    assert ("visits" in job.controller) == (workflow == "temporal")


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_line_of_the_readme_is_a_job(name: str) -> None:
    job = read_job(JOB)
    changed = override(job, read_pairs(lines()[name]))
    check_job(changed)
    assert changed != job, "the line changes nothing"


def test_the_example_of_the_readme_is_a_job() -> None:
    text = (JOB / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    words = shlex.split(re.findall(r"^    (medflare run jobs/fedtar --set rule=fedadam .*)$", text, re.M)[0])
    job = override(read_job(JOB), read_pairs(words[4::2]))
    check_job(job)
    assert job.aggregation["rule"] == "fedadam"


@pytest.mark.parametrize("place", ["", "settings.", "rule_settings."])
def test_the_number_of_visits_is_said_once(place: str) -> None:
    job = override(read_job(JOB), read_pairs([f"{place}visits=3"]))
    check_job(job)
    assert (
        job.controller["visits"] == job.settings["visits"] == job.aggregation["rule_settings"]["visits"] == 3
    )


@pytest.mark.parametrize("place", ["", "settings."])
def test_the_mixture_is_said_once(place: str) -> None:
    changes = [f"{place}mixture.source=global_fixed", f"{place}mixture.components=8"]
    job = override(read_job(JOB), read_pairs(changes))
    check_job(job)
    expected = {"source": "global_fixed", "components": 8, "least_patients": 10}
    assert job.controller["mixture"] == job.settings["mixture"] == expected


@pytest.mark.parametrize("variant", ["without_personalisation", "pooled_baseline"])
@pytest.mark.parametrize("said", [[], ["mixture=null"]])
def test_no_mixture_is_fitted_where_nobody_asks_for_it(variant: str, said: list[str]) -> None:
    job = override(read_job(JOB), read_pairs([f"settings.variant={variant}", *said]))
    check_job(job)
    assert job.controller.get("mixture") is None
    kept = override(read_job(JOB), read_pairs(["settings.batch=8"]))
    assert kept.controller["mixture"] == read_job(JOB).controller["mixture"]


def test_a_job_file_with_a_mixture_that_nobody_asks_for_is_refused() -> None:
    job = read_job(JOB)
    with pytest.raises(ConfigError, match="Set mixture to null"):
        check_job(replace(job, settings={**job.settings, "personal": False}))


def test_another_rule_takes_no_number_of_visits_along() -> None:
    job = override(read_job(JOB), read_pairs(["rule=fedavg", "visits=3"]))
    check_job(job)
    assert (job.settings["visits"], job.aggregation) == (3, {"rule": "fedavg"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["workflow=rounds"], "the rule takes one visit an exchange"),
        (["visits=3", "settings.visits=4"], "settings.visits is 4, and the controller's `visits` is 3"),
        (["mixture=null"], "no `mixture` stands in the controller's settings"),
        (["settings.personal=false", "mixture.components=8"], "settings.mixture.components has no effect"),
        (["settings.mixture.components=8", "mixture.components=4"], "Give both the same"),
        (["protection=he"], "stay encrypted"),
        (["workflow=swarm"], "is none of rounds, temporal"),
        (["rule=fedavg", "rule_settings.alpha_mode=softmax"], "alpha_mode"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_starts(changes: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_job(override(read_job(JOB), read_pairs(changes)))
