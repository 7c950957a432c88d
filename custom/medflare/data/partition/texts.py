# SPDX-License-Identifier: Apache-2.0
"""One pooled cohort of questions or summaries dealt to several sites: IID, by class, or Dirichlet (DDCS).

Splits stay what they are in the pool, so that what is tested at one site is trained on at none.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError
from medflare.data.partition.partitioning import (
    HEAD,
    SITE_FILE,
    assign_to_sites,
    class_shares,
    dirichlet_shares,
    even_shares,
    write_site_file,
)
from medflare.data.partition.studies import main_classes
from medflare.data.records import Question, Summary, TextRecord
from medflare.labelling.labels import label_report

TEXT_PARTITIONS = ("iid", "class", "dirichlet")
FORMATS = {Question: ("questions_jsonl", "questions.jsonl"), Summary: ("summaries_jsonl", "summaries.jsonl")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan:
    """Settings of the partition of questions or summaries into sites.

    Attributes:
        method: iid; class, each group at one or two sites; dirichlet, shares of each group drawn.
        alpha: concentration of these shares; small is uneven.
        sites: names, in order; sizes: how large each shall be against the others, () for alike.
    """

    sites: tuple[str, ...]
    method: str = "class"
    alpha: float = 0.5
    seed: int = 0
    sizes: tuple[float, ...] = ()


def partition_texts(records: Sequence[TextRecord], plan: TextPlan) -> dict[str, list[TextRecord]]:
    """Return site -> its questions or summaries; all summaries of a patient are at one site.

    Raises:
        ConfigError: as `assign_groups_to_sites`.
    """
    owners = [record.owner for record in records]
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for owner, record in zip(owners, records, strict=True):
        groups[owner][record.group] += 1
    given = assign_groups_to_sites(
        {owner: counts.most_common(1)[0][0] for owner, counts in groups.items()}, plan
    )
    dealt: dict[str, list[TextRecord]] = {site: [] for site in plan.sites}
    for owner, record in zip(owners, records, strict=True):
        dealt[plan.sites[given[owner]]].append(record)
    return dealt


def assign_groups_to_sites(groups: dict[str, str], plan: TextPlan) -> dict[str, int]:
    """Return owner -> number of its site, from owner -> group.

    Raises:
        ConfigError: an unknown method, fewer owners than sites, or a partition by groups where there is one.
    """
    if plan.method not in TEXT_PARTITIONS:
        raise ConfigError(f"partition '{plan.method}' of texts: there are {', '.join(TEXT_PARTITIONS)}.")
    if plan.alpha <= 0:
        raise ConfigError(
            f"partition alpha {plan.alpha}: must be above 0; 0.1 is very uneven, 10 nearly even."
        )
    sites = len(plan.sites)
    if not sites or len(groups) < sites:
        raise ConfigError(f"{len(groups)} questions or patients cannot be dealt to {sites} sites.")
    names = sorted(set(groups.values()))
    if plan.method != "iid" and len(names) < 2:
        raise ConfigError(
            f"partition '{plan.method}' deals groups, and all records are of one, {names[0]!r}. Name the "
            "column that holds them, `columns: {group: ...}` in site.yaml, or deal them iid."
        )
    rng = np.random.default_rng(plan.seed)
    sizes = np.asarray(plan.sizes or np.ones(sites), dtype=float)
    if plan.method == "iid":
        return assign_to_sites(dict.fromkeys(groups, ""), even_shares(sizes), sites, rng)
    if plan.method == "class":
        return assign_to_sites(groups, class_shares(names, sizes, rng), sites, rng)
    return assign_to_sites(groups, dirichlet_shares(sizes, plan.alpha, rng), sites, rng)


def grouped_by_findings(summaries: Sequence[Summary]) -> list[Summary]:
    """Return the summaries grouped by the patient's rarest positive condition, found by the rule labeller.

    Source and target are read together; "no finding" where nothing is positive.
    """
    profiles: dict[str, np.ndarray] = {}
    for summary in summaries:
        codes = np.eye(len(Code))[list(label_report(f"{summary.source} {summary.target}"))].ravel()
        profiles[summary.owner] = profiles.get(summary.owner, 0) + codes
    names = [*CONDITIONS, CONDITIONS[-1]]
    classes = main_classes(profiles, None)
    return [replace(summary, group=names[classes[summary.owner]]) for summary in summaries]


def write_text_partition(
    records: Sequence[TextRecord], plan: TextPlan, folder: Path, site: dict[str, Any] | None = None
) -> Path:
    """Write <folder>/<site>/ for each site and <folder>/site.yaml; return the latter.

    Args:
        site: further settings of every site, such as its `knowledge`.
    """
    dealt = partition_texts(records, plan)
    head = f"{HEAD} {len(records)} records: {json.dumps(asdict(plan))}\n"
    return write_sites(dealt, folder, head, site)


def write_sites(
    dealt: dict[str, list[TextRecord]], folder: Path, head: str, site: dict[str, Any] | None = None
) -> Path:
    """Write the records of each site as JSON lines, and the site.yaml that reads them, after `head`."""
    cohorts = {}
    for name, records in dealt.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        format, file = FORMATS[type(records[0])]
        rows = "".join(f"{json.dumps(record.to_row(), ensure_ascii=False)}\n" for record in records)
        (folder / name / file).write_text(rows, encoding="utf-8", newline="\n")
        cohorts[name] = [{"format": format}]
    return write_site_file(folder / SITE_FILE, cohorts, head, site)
