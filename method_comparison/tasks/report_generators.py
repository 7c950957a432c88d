# SPDX-License-Identifier: Apache-2.0
"""Report generators under FedAvg, each with the control in which drafts go with other patients' images.

Partition `synthetic`: three synthetic hospitals that the comparison writes, each with its test studies.
`benchmark`: the clients of a folder that `medflare benchmark fl-mrg` made, named in the settings; its
common test sets are tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.in_process.checkpoint import LoopCheckpoint
from method_comparison.markdown_table import Column
from method_comparison.published import MILLIONS, published_tables
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, ShownRow, Unit

UNSEEN = ("bleu_1", "bleu_4", "rouge_l", "label_f1", "label_recall", "label_precision")
"""Scores on the test set of a source that no client has."""
SHIFTS = (1, 7, 13)
"""Places by which drafts are moved to other patients in the control."""


class GeneratorComparison(Settings):
    """Budget and data, equal for all methods.

    Attributes:
        steps: of a site in a round; None: `fraction` of its data.
        tested: test images of a site; None for all.
        benchmark: folder of `medflare benchmark fl-mrg`, for the partition `benchmark`.
        setting: of that benchmark, whose published figures stand beside ours.
    """

    hospitals: int = Field(default=3, ge=1, le=3)
    patients: int = Field(default=160, ge=20)
    rounds: int = Field(default=3, ge=1)
    steps: int | None = Field(default=40, ge=1)
    fraction: float | None = Field(default=None, gt=0, le=1)
    tested: int | None = Field(default=32, ge=2)
    max_new_tokens: int = Field(default=70, ge=1)
    benchmark: Path | None = None
    backbone: Path | None = None
    setting: str = "cluster"


class GeneratorMethod(Settings):
    """A method of the package and its own settings."""

    learner: str
    settings: dict[str, Any] = Field(default_factory=dict)
    rule: str = "weighted_mean"
    rule_settings: dict[str, Any] = Field(default_factory=dict)


class ReportGenerators(ComparisonTask[GeneratorComparison, GeneratorMethod]):
    """Scores of drafts over all test studies, and of the same drafts beside other patients' references."""

    name = "report_generators"
    settings, method_settings = GeneratorComparison, GeneratorMethod
    partitions: ClassVar[Sequence[str]] = ("synthetic", "benchmark")
    columns: ClassVar[Mapping[str, Column]] = {
        "bleu_1": Column(title="BLEU-1"),
        "bleu_2": Column(title="BLEU-2"),
        "bleu_3": Column(title="BLEU-3"),
        "bleu_4": Column(title="BLEU-4"),
        "rouge_l": Column(title="ROUGE-L"),
        "label_f1": Column(title="CE F1, example-based"),
        "label_recall": Column(title="CE recall"),
        "label_precision": Column(title="CE precision"),
        "label_micro_f1": Column(title="label F1"),
        "swapped_f1": Column(title="label F1, images swapped", tested=False),
        "unseen_bleu_1": Column(title="unseen: BLEU-1"),
        "unseen_bleu_4": Column(title="unseen: BLEU-4"),
        "unseen_rouge_l": Column(title="unseen: ROUGE-L"),
        "unseen_label_f1": Column(title="unseen: CE F1"),
        "unseen_label_recall": Column(title="unseen: CE recall"),
        "unseen_label_precision": Column(title="unseen: CE precision"),
        "distinct": Column(title="different drafts", tested=False),
        "millions": Column(title="parameters sent, M", scale=1.0, digits=2, tested=False),
        "bytes_a_round": Column(title="MB a site and round, bf16", scale=1.0, digits=2, tested=False),
    }
    curve_axes: ClassVar[Mapping[str, str]] = {"loss": "round"}

    def prepare(self, settings: GeneratorComparison, partition: str, seed: int, shared: Path) -> None:
        if partition == "benchmark" and settings.benchmark is None:
            raise ConfigError(
                "partition benchmark: name the folder of `medflare benchmark fl-mrg` in settings.benchmark."
            )
        if partition == "benchmark" or (shared / "hospital-1" / "manifest.jsonl").is_file():
            return
        from medflare.synthetic import DEMO_HOSPITALS, write_hospital

        for number in range(settings.hospitals):
            write_hospital(DEMO_HOSPITALS[number], shared / f"hospital-{number + 1}", settings.patients)

    def train(self, unit: Unit[GeneratorComparison, GeneratorMethod]) -> Measured:
        import torch

        from medflare.learners.registry import build_learner

        settings, own = unit.settings, unit.own
        learners: dict[str, Any] = {}
        for name, config in self._sites(unit).items():
            torch.manual_seed(unit.seed)
            learners[name] = build_learner(own.learner, own.settings, config, unit.seed, unit.folder / name)
        checkpoint = unit.progress.checkpoint()
        curve = checkpoint.noted

        def keep(number: int, state: Any, updates: Any) -> None:
            losses = [update.metrics["loss"] for update in updates.values()]
            curve.append((float(number + 1), float(np.mean(losses))))

        state = self._federate(unit, learners, keep, checkpoint)
        sent = sum(tensor.numel() for tensor in state.values())
        for learner in learners.values():
            learner.load_shared(state)
        size = 2 * sent * self._exchanges(own)
        values = self._all_scores(settings, unit.partition, learners)
        values |= {"millions": sent / 1e6, "bytes_a_round": 2 * size / 1e6}
        return Measured(
            values=values, curves={"loss": curve}, bytes=2 * size * settings.rounds * len(learners)
        )

    def _exchanges(self, own: GeneratorMethod) -> int:
        """Return how often a site sends an update in a round."""
        return 1

    def _federate(
        self,
        unit: Unit[GeneratorComparison, GeneratorMethod],
        learners: Mapping[str, Any],
        keep: Any,
        checkpoint: LoopCheckpoint,
    ) -> Mapping[str, Any]:
        """Train all rounds and return the shared state; `keep` sees every exchange."""
        from medflare.aggregation import make_rule
        from medflare.core.plan import RoundPlan
        from medflare.in_process.loop import federate

        settings = unit.settings

        def plan(number: int) -> RoundPlan:
            return RoundPlan(
                round=number,
                rounds=settings.rounds,
                seed=unit.seed,
                steps=settings.steps,
                fraction=settings.fraction,
            )

        rule = make_rule(unit.own.rule, unit.own.rule_settings)
        return federate(learners, rule, settings.rounds, plan, keep, checkpoint=checkpoint)

    def _sites(self, unit: Unit[GeneratorComparison, GeneratorMethod]) -> dict[str, Any]:
        """Return the configuration of every site that trains."""
        from medflare.data.settings.site import SiteConfig, load_site_file

        backbone: dict[str, Any] = {"precision": "fp32"}
        if unit.settings.backbone is not None:
            backbone["folder"] = str(unit.settings.backbone)
        if unit.partition == "benchmark":
            assert unit.settings.benchmark is not None
            return dict(load_site_file(unit.settings.benchmark / "site.yaml"))
        return {
            f"site-{number}": SiteConfig.model_validate(
                {
                    "name": f"site-{number}",
                    "cohort": {"format": "manifest", "root": str(unit.shared / f"hospital-{number}")},
                    "backbone": backbone,
                    "device": "cpu",
                }
            )
            for number in range(1, unit.settings.hospitals + 1)
        }

    def _all_scores(
        self, settings: GeneratorComparison, partition: str, learners: Mapping[str, Any]
    ) -> dict[str, float]:
        """Score the shared model on the sites' own test studies, or on a benchmark's common test sets."""
        if partition == "synthetic":
            tested = [(one, one.samples, one.samples.split_indices("test")) for one in learners.values()]
            return scores(settings, tested)
        from medflare.data.samples import open_samples
        from medflare.data.settings.site import load_site_file

        assert settings.benchmark is not None
        learner = next(iter(learners.values()))
        size = learner.model.settings.encoder.stored_size
        places: dict[bool, list[tuple[Any, Any, list[int]]]] = {False: [], True: []}
        for name, config in load_site_file(settings.benchmark / "test.yaml").items():
            samples = open_samples(config, size)
            places[name.endswith("-unseen")].append((learner, samples, samples.split_indices("test")))
        found = scores(settings, places[False]) if places[False] else {}
        if places[True]:
            unseen = scores(settings, places[True])
            found |= {f"unseen_{name}": unseen[name] for name in UNSEEN}
        return found

    def notes(self, partition: str, rows: Mapping[str, ShownRow[GeneratorComparison]]) -> Sequence[str]:
        if not rows:
            return ()
        settings = next(iter(rows.values())).settings
        tables = published_tables(list(rows), settings.setting)
        sent = ", ".join(f"{name} {MILLIONS[name]} M" for name in rows if name in MILLIONS)
        found = [f"The papers report as sent: {sent}."] if sent else []
        return [*found, *("\n".join(lines) for lines in tables)]


def scores(settings: GeneratorComparison, tested: Sequence[tuple[Any, Any, list[int]]]) -> dict[str, float]:
    """Draft (learner, samples, rows) with the shared model and score all of them together."""
    from medflare.tasks.reports.evaluation import draft, greedy

    references: list[str] = []
    drafts: list[str] = []
    gold: list[np.ndarray] = []
    moved: dict[int, list[str]] = {shift: [] for shift in SHIFTS}
    for learner, samples, rows in tested:
        rows = rows[: settings.tested]
        learner.adapters()["generic"]()
        decoding = greedy(learner.settings.decoding)
        decoding = decoding.model_copy(update={"max_new_tokens": settings.max_new_tokens})
        texts, _ = draft(learner.model, samples, rows, decoding, 32)
        references += [samples.reports[row] for row in rows]
        gold.append(samples.codes[rows].numpy())
        drafts += texts
        for shift in SHIFTS:
            moved[shift] += list(np.roll(texts, shift))
    return scores_of(references, drafts, np.concatenate(gold), moved)


def scores_of(
    references: Sequence[str],
    drafts: Sequence[str],
    codes: np.ndarray,
    moved: Mapping[int, Sequence[str]],
) -> dict[str, float]:
    """Score drafts, and the same ones moved to other patients.

    Args:
        codes: (n, 14) of the references. moved: shift -> the drafts in their other places.
    """
    from medflare.evaluation.report_metrics import label_metrics, quick_metrics, rule_codes

    labels = label_metrics(codes, rule_codes(drafts))
    found = quick_metrics(references, drafts, codes) | labels
    swapped = [label_metrics(codes, rule_codes(texts))["label_micro_f1"] for texts in moved.values()]
    kept = (
        *("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l"),
        *("label_f1", "label_recall", "label_precision", "label_micro_f1"),
    )
    control = {"swapped_f1": float(np.mean(swapped)), "distinct": len(set(drafts)) / len(drafts)}
    return {name: found[name] for name in kept} | control
