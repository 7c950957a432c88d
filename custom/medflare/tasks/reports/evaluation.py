# SPDX-License-Identifier: Apache-2.0
"""Generates and scores reports of a split: the metrics of a round, and the final test at a site."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file

from medflare.core.data_order import drawn
from medflare.core.errors import DataError
from medflare.core.json_lines import write_lines
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.sample_drafts import offer_drafts
from medflare.core.task_progress import report_progress
from medflare.data.images import centre
from medflare.data.records import SPLITS
from medflare.data.samples import Samples, open_samples
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.report_metrics import METRICS, QUICK, Evaluation, evaluate_reports, quick_metrics
from medflare.labelling.labels import label_report
from medflare.models.adapters.base import GENERIC, SPECIALISED
from medflare.models.padding import IGNORED, pad
from medflare.models.report_generator import DecodingSettings, ReportGenerator
from medflare.models.report_result import Drafter, load_generator
from medflare.tasks.prediction_files import relative_image
from medflare.tasks.reports.plausibility import write_reference
from medflare.tasks.scoring import (
    EVERY_SPLIT,
    AdapterKind,
    EvaluationOptions,
    Role,
    ScoredSite,
    adapter_kind,
    open_on_site,
    shown_by,
)

DIAGNOSES = "diagnosis_accuracy"
"""Share of right diagnoses among those that prompt the reports."""


class ReportSettings(Protocol):
    """Method settings that this module reads."""

    @property
    def decoding(self) -> DecodingSettings: ...

    @property
    def eval_batch(self) -> int: ...

    @property
    def eval_limit(self) -> int | None: ...

    @property
    def classification(self) -> bool:
        """True if the model names diagnoses before it writes."""
        ...


class ReportLearner(Protocol):
    """Learner that drafts reports, as far as this module needs it."""

    site: str
    seed: int
    samples: Samples
    tokens: list[list[int]]
    scorers: Mapping[str, str | Path]

    @property
    def model(self) -> Drafter: ...

    @property
    def settings(self) -> ReportSettings: ...

    def adapters(self) -> dict[AdapterKind, Callable[[], None]]:
        """Return the adapters to test at the end, each with the function that activates it."""
        ...


class Personalised(Protocol):
    """A learner whose site has an adapter of its own."""

    model: ReportGenerator

    def mix(self) -> tuple[float, float]: ...


def draft(
    model: Drafter, samples: Samples, rows: list[int], decoding: DecodingSettings, batch: int
) -> tuple[list[str], torch.Tensor]:
    """Draft reports of `rows` with the adapters in use; return them and the (n, 14) codes of the prompts."""
    texts: list[str] = []
    codes: list[torch.Tensor] = []
    size = model.settings.encoder.image_size
    with model.evaluating():
        for start in range(0, len(rows), batch):
            report_progress("reports drafted", start, len(rows))
            images = centre(samples.images(rows[start : start + batch]), size).to(model.device)
            written, prompted = model.generate(images, decoding)
            texts += written
            codes.append(prompted.cpu())
    return texts, torch.cat(codes)


def greedy(decoding: DecodingSettings) -> DecodingSettings:
    """Return greedy decoding: a curve needs the same decoder each round, not the best one."""
    return DecodingSettings(
        beams=1, max_new_tokens=decoding.max_new_tokens, min_new_tokens=0, repetition_penalty=1.0
    )


def names_of(learner: ReportLearner) -> MetricNames:
    """Return the names of what `evaluate_split` and `finish_site` measure."""
    prompted = [DIAGNOSES] if learner.settings.classification else []
    return MetricNames(
        validation=[*QUICK, "loss", *prompted], tested=dict.fromkeys(learner.adapters(), METRICS)
    )


def evaluate_split(learner: ReportLearner, split: str, plan: RoundPlan) -> Metrics:
    """Return what a plan asks of a split; nothing where there is no row.

    The loss with predicted prompts, alone for a probe (on studies that the round draws) or where the plan
    says so; else with quick scores of greedy reports, on as many studies as plan or settings say.
    """
    settings, hints = learner.settings, plan.hints
    rows = learner.samples.split_indices(split)
    if hints.probe:
        rows = drawn(rows, hints.probe, learner.seed, learner.site, plan.round)
    else:
        rows = rows[: settings.eval_limit if plan.limit is None and not hints.loss_only else plan.limit]
    if not rows:
        return Metrics()
    loss = {"loss": split_loss(learner, rows)}
    if hints.probe or hints.loss_only:
        return Metrics(loss, len(rows))
    texts, prompted = draft(
        learner.model, learner.samples, rows, greedy(settings.decoding), settings.eval_batch
    )
    gold, references = learner.samples.codes[rows], [learner.samples.reports[i] for i in rows]
    offer_drafts([learner.samples.studies[i].study_id for i in rows], references, texts)
    metrics = quick_metrics(references, texts, gold.numpy()) | loss
    if settings.classification:
        metrics[DIAGNOSES] = float((prompted == gold).float().mean())
    return Metrics(metrics, len(rows))


@torch.no_grad()
def split_loss(learner: ReportLearner, rows: list[int]) -> float:
    """Mean negative log-likelihood per report token with the adapters in use and predicted prompts."""
    model, batch, total, count = learner.model, learner.settings.eval_batch, 0.0, 0
    with model.evaluating():
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            images = centre(learner.samples.images(part), model.settings.encoder.image_size)
            ids, targets = pad([learner.tokens[i] for i in part])
            loss = model.report_loss(*(x.to(model.device) for x in (images, ids, targets)))
            kept = int((targets != IGNORED).sum())
            total += loss.item() * kept
            count += kept
    return total / count


def finish_site(learner: ReportLearner, folder: Path, limit: int | None) -> list[EvaluationRecord]:
    """Test quality of each of the learner's adapters.

    Predictions go into `folder`, and so does what the site's images look like to the encoder.
    """
    samples = learner.samples
    rows = samples.split_indices("test")[:limit]
    settings, records = learner.settings, []
    for adapter, use in learner.adapters().items() if rows else ():
        use()
        site = ScoredSite(learner.site, "participant", adapter, folder, learner.seed)
        scored = score_adapter(
            learner.model,
            samples,
            rows,
            site,
            settings.decoding,
            settings.eval_batch,
            scorers=learner.scorers,
        )
        records.append(scored)
    write_reference(
        learner.model,
        samples.images,
        samples.split_indices("train"),
        [*samples.split_indices("val"), *samples.split_indices("test")],
        site=learner.site,
        seed=learner.seed,
        folder=folder,
    )
    return records


def predict(
    model: Drafter,
    samples: Samples,
    rows: list[int],
    site: ScoredSite,
    decoding: DecodingSettings,
    batch: int = 32,
) -> list[Prediction]:
    """Generate the reports of `rows` with the adapters in use and writes `predictions_<adapter>.jsonl`."""
    texts = draft(model, samples, rows, decoding, batch)[0] if rows else []
    items = [
        Prediction(
            study_id=samples.studies[row].study_id,
            patient_id=samples.studies[row].patient_id,
            site=site.name,
            adapter=site.adapter,
            reference=samples.reports[row],
            generated=text,
            gold_codes=tuple(samples.codes[row].tolist()),
            predicted_codes=label_report(text),
            image=relative_image(samples.paths[row], site.file),
        )
        for row, text in zip(rows, texts, strict=True)
    ]
    write_lines(site.file, items)
    return items


def score_adapter(
    model: Drafter,
    samples: Samples,
    rows: list[int],
    site: ScoredSite,
    decoding: DecodingSettings,
    batch: int = 32,
    scorers: Mapping[str, str | Path] | None = None,
    reference_words: int | None = None,
) -> EvaluationRecord:
    """Generate the reports of `rows` with the adapters in use, keep them in a file and score them."""
    items = predict(model, samples, rows, site, decoding, batch)
    return site.record(evaluate_predictions(items, scorers, site.seed, reference_words), len(rows))


def evaluate_predictions(
    items: Sequence[Prediction],
    scorers: Mapping[str, str | Path] | None,
    seed: int,
    reference_words: int | None = None,
) -> Evaluation:
    """Score drafted reports; intervals are over patients."""
    return evaluate_reports(
        [item.reference for item in items],
        [item.generated for item in items],
        [item.gold_codes for item in items],
        [item.predicted_codes for item in items],
        scorers=scorers,
        groups=[item.patient_id for item in items],
        seed=seed,
        reference_words=reference_words,
    )


def score_result(
    result: Path,
    site: SiteConfig,
    *,
    role: Role,
    adapter: Path | None,
    split: str,
    folder: Path,
    seed: int,
    scorers: Mapping[str, str | Path] | None = None,
    options: EvaluationOptions = EvaluationOptions(),
) -> EvaluationRecord:
    """Score a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
        scorers: instead of those in site.yaml.
    """
    options.refuse_text_options()
    model, decoding = open_on_site(load_generator, result, site, adapter)
    samples = open_samples(site, model.settings.encoder.stored_size, folder / "cache")
    splits = SPLITS if split == EVERY_SPLIT else (split,)
    rows = [row for name in splits for row in samples.split_indices(name)][: options.limit]
    if not rows:
        raise DataError(f"site '{site.name}': no study in the split '{split}': {samples.examples()}.")
    tested = ScoredSite(site.name, role, adapter_kind(adapter), folder, seed)
    with shown_by(options.progress):
        return score_adapter(
            model,
            samples,
            rows,
            tested,
            decoding,
            scorers=site.scorers if scorers is None else scorers,
            reference_words=options.reference_words,
        )


def write_personalised(learner: Personalised, folder: Path) -> None:
    """γ ΔW_g + (1−γ) ΔW_s as one folder of twice the rank; of LoRA, any PEFT user can open it (MRG-8)."""
    state, config = learner.model.adapters.mixture((GENERIC, SPECIALISED), learner.mix())
    config |= {"base_model_name_or_path": learner.model.backbone.name}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.contiguous() for name, value in state.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
