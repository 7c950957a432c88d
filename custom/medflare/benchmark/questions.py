# SPDX-License-Identifier: Apache-2.0
"""DDCS's settings as a benchmark: MedQA and MedMCQA dealt to clients, one common test set (BM-10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt

from medflare.benchmark.folder import BENCHMARK, TEST_HEAD, split_facts, write_facts, write_lines
from medflare.benchmark.index import digest_of
from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.core.idle_settings import idle_if
from medflare.data.grouped_split import group_names, move_groups
from medflare.data.load import load_cohort
from medflare.data.partition.partitioning import write_site_file
from medflare.data.partition.texts import TextPlan, partition_texts
from medflare.data.records import Question
from medflare.data.settings.site import SiteConfig
from medflare.data.text_heterogeneity import text_heterogeneity

COHORT, TABLE = [{"format": "questions_jsonl"}], "questions.jsonl"
TEST = "common-test"


class QuestionsBenchmarkSettings(Settings):
    """One benchmark of questions.

    Attributes:
        setting: DDCS's IID, Class and Dirichlet. alpha: of dirichlet.
    """

    setting: Literal["iid", "class", "dirichlet"] = "iid"
    clients: int = Field(default=20, ge=2)
    alpha: float = Field(default=0.5, gt=0)
    seed: NonNegativeInt = 0

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if((self.setting != "dirichlet", f"setting is '{self.setting}'", "alpha"))


def build_questions(
    settings: QuestionsBenchmarkSettings, sources: Mapping[str, SiteConfig], out: Path
) -> dict[str, Any]:
    """Build the benchmark in `out` and return what benchmark.json says.

    Args:
        sources: cohort of questions by name, as a site.yaml has them; a question without a subject has its
            source's name as its group. Questions of the same words are in one split, as inside a source.

    Raises:
        ConfigError: a source without questions, or fewer questions than clients.
        DataError: a cohort cannot be read.
    """
    pool: list[Question] = []
    for name, config in sources.items():
        found = load_cohort(config).questions
        if not found:
            raise ConfigError(f"{name}: holds no question, but this benchmark is of questions.")
        pool += [
            replace(one, question_id=f"{name}-{one.question_id}", group=one.group or name) for one in found
        ]
    # One examination's test question may be another's training question.
    pool, moved = move_groups(pool, group_names(pool))
    test = [one for one in pool if one.split == "test"]
    names = tuple(f"client-{number}" for number in range(1, settings.clients + 1))
    plan = TextPlan(sites=names, method=settings.setting, alpha=settings.alpha, seed=settings.seed)
    dealt = partition_texts([one for one in pool if one.split != "test"], plan)
    places = {**dealt, **({TEST: test} if test else {})}
    with BENCHMARK.building(out, overwrite=True) as folder:
        for name, records in places.items():
            write_lines((record.to_row() for record in records), folder / name / TABLE)
        ids = {n: [(r.question_id, r.split) for r in records] for n, records in places.items()}
        facts = {
            "schema_version": 1,
            "benchmark": "questions",
            "settings": settings.model_dump(mode="json"),
            "splits": split_facts(ids),
            "moved_between_splits": moved,
            "tables": {f"{name}/{TABLE}": digest_of(folder / name / TABLE) for name in places},
            "clients": text_heterogeneity({name: places[name] for name in names}),
        }
        head = f"# Clients of the setting {settings.setting}; made by `medflare benchmark questions`.\n"
        write_site_file(folder / "site.yaml", dict.fromkeys(names, COHORT), head)
        if test:
            write_site_file(folder / "test.yaml", {TEST: COHORT}, TEST_HEAD)
        write_facts(folder, facts)
    return facts
