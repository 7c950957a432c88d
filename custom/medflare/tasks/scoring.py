# SPDX-License-Identifier: Apache-2.0
"""Testing adapters on the records of a site, during a run and after it: what all tasks share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from medflare.core.errors import ConfigError, DataError
from medflare.core.json_lines import write_lines
from medflare.core.run_record import AdapterKind, Estimate, EvaluationRecord, RecordModel
from medflare.core.task_progress import listening
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.settings.cohort import SplitConfig
from medflare.data.settings.site import SiteConfig
from medflare.models.backbone import device_of

Role = Literal["participant", "unseen"]
Scorers = Mapping[str, str | Path] | None
"""Optional scorer -> folder of its weights."""


EVERY_SPLIT = "all"
Progress = Callable[[int, int], None]
"""Takes how many records are done, and how many there are."""
LOGGER = logging.getLogger(__name__)
UNTESTED: Mapping[Role, str] = {
    "unseen": "site '%s' took no part in the run, and %d of its %s(s) are not tested, as its files or "
    "site.yaml put them in the splits train and val. `--split all` tests them too.",
    "participant": "site '%s' may have trained this model, so %d of its %s(s), of the splits train and val, "
    "are not tested. If it took no part, give it a name in site.yaml that no site of the run has, or "
    "--unseen where the run is not here.",
}


def logged_progress(what: str) -> Progress:
    """Return a progress that writes how many are done, and how long the others will take, to the log."""
    began = time.monotonic()

    def report(done: int, total: int) -> None:
        if 0 < done < total:
            minutes = (time.monotonic() - began) / done * (total - done) / 60
            LOGGER.info("tested %d of %d %s, about %.0f min left", done, total, what, minutes)

    return report


def shown_by(progress: Progress | None) -> AbstractContextManager[None]:
    """Return a context in which a task's own reports of how far it is go to `progress`."""
    return (
        nullcontext() if progress is None else listening(lambda counted, done, total: progress(done, total))
    )


def without_training_split(site: SiteConfig) -> SiteConfig:
    """Return a site that tests every record that has no split of its own, unless site.yaml sets shares."""
    everything = SplitConfig(train=0, val=0, test=1)
    cohorts = [
        cohort if "split" in cohort.model_fields_set else cohort.model_copy(update={"split": everything})
        for cohort in site.cohort
    ]
    return site.model_copy(update={"cohort": tuple(cohorts)})


class HasSplit(Protocol):
    """A record that belongs to a split."""

    @property
    def split(self) -> str: ...


class Scores(Protocol):
    """The scores of an evaluation, with intervals, and why others were skipped."""

    @property
    def estimates(self) -> Mapping[str, Estimate]: ...

    @property
    def skipped(self) -> Mapping[str, str]: ...


Opened = TypeVar("Opened")
Record = TypeVar("Record", bound=HasSplit)
Predicted = TypeVar("Predicted", bound=RecordModel)


@dataclass(frozen=True, slots=True)
class ScoredSite:
    """Site and adapter of a test, and the folder for its predictions."""

    name: str
    role: Role
    adapter: AdapterKind
    folder: Path
    seed: int = 0

    @property
    def file(self) -> Path:
        """The file of predictions, which stays at the site."""
        return self.folder / f"predictions_{self.adapter}.jsonl"

    def record(self, scored: Scores, studies: int, split: str = "test") -> EvaluationRecord:
        """Return the evaluation record of that many test records."""
        return EvaluationRecord(
            site=self.name,
            role=self.role,
            adapter=self.adapter,
            split=split,
            studies=studies,
            metrics=dict(scored.estimates),
            skipped_metrics=dict(scored.skipped),
            predictions=self.file.name,
        )


def open_on_site(
    load: Callable[..., Opened], result: Path, site: SiteConfig, adapter: Path | None, **options: Any
) -> Opened:
    """Open a result folder on a site's base model and device.

    Args:
        load: opens it, given `personalised`, `backbone`, `precision` and `device`.
        adapter: the site's `personalised` folder instead of the result's adapter, or None.
        options: more that `load` takes.
    """
    return load(
        result,
        personalised=adapter,
        backbone=site.backbone.folder,
        precision=site.backbone.precision,
        device=device_of(site.device),
        **options,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """Options of a test that a user may choose.

    Attributes:
        limit: most records; batch: of one batch; None for all, and for the method's own.
        zero_shot: the run's model and wording without its adapter.
        reference_words: of a report, words of a reference that scores by R2Gen's rules keep; None for all.
        progress: called with the records done and all of them, before and after each part.
    """

    limit: int | None = None
    batch: int | None = None
    zero_shot: bool = False
    progress: Progress | None = None
    reference_words: int | None = None

    def refuse_text_options(self) -> None:
        """Raise ConfigError where an option is in use that only text tasks have."""
        given = {"--batch": self.batch is not None, "--zero-shot": self.zero_shot}
        if names := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{', '.join(names)}: is for runs that extract, answer or summarise; leave it out."
            )


def adapter_kind(adapter: Path | None) -> AdapterKind:
    """Return which adapter is tested: a site's `personalised` one, or the result's."""
    return "generic" if adapter is None else "personalised"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRecords(Generic[Opened, Record, Predicted]):
    """Prediction and scoring of the records of a text task.

    Attributes:
        record_name: the word for one record, for messages.
        records: those of a cohort.
        load: opens a result folder.
        predict: (model, records, site, adapter) -> what the model made of each record.
        evaluate: (predictions, optional scorers, seed) -> scores.
        quick: metrics of the curves of a running training; metrics: those that `evaluate` may have.
        patient: whose a record is; None where it names nobody.
        scorers: whether there are optional scorers.
        part: records predicted between two reports of progress.
    """

    record_name: str
    records: Callable[[Cohort], Sequence[Record]]
    load: Callable[..., Opened]
    predict: Callable[[Opened, Sequence[Record], str, AdapterKind], list[Predicted]]
    evaluate: Callable[[Sequence[Predicted], Mapping[str, str | Path], int], Scores]
    quick: Sequence[str]
    metrics: Sequence[str]
    patient: Callable[[Record], str | None]
    scorers: bool = False
    part: int = 8

    def of_split(self, cohort: Cohort, split: str) -> list[Record]:
        """Return the records of a split, or of all."""
        return [record for record in self.records(cohort) if split in (record.split, EVERY_SPLIT)]

    def score(
        self,
        model: Opened,
        records: Sequence[Record],
        site: ScoredSite,
        scorers: Scorers = None,
        progress: Progress | None = None,
    ) -> EvaluationRecord:
        """Predict records, write the predictions to the site's file and score them."""
        report = progress or logged_progress(f"{self.record_name}s of {site.name}")
        predicted: list[Predicted] = []
        report(0, len(records))
        for start in range(0, len(records), self.part):
            predicted += self.predict(model, records[start : start + self.part], site.name, site.adapter)
            report(len(predicted), len(records))
        write_lines(site.file, predicted)
        return site.record(self.evaluate(predicted, scorers or {}, site.seed), len(predicted))

    def score_result(
        self,
        result: Path,
        site: SiteConfig,
        *,
        role: Role,
        adapter: Path | None,
        split: str,
        folder: Path,
        seed: int,
        scorers: Scorers = None,
        options: EvaluationOptions = EvaluationOptions(),
    ) -> EvaluationRecord:
        """Score a result folder on a site's split.

        A site that took no part has trained on nothing: records for which neither its files nor site.yaml
        have a split are all tested.

        Args:
            adapter: the site's own `personalised` folder instead of the result's adapter, or None.
            scorers: instead of those in site.yaml.

        Raises:
            ConfigError: `scorers` are given and the task has none.
            DataError: the site has no record of that split.
        """
        if scorers and not self.scorers:
            raise ConfigError(f"--scorer {', '.join(scorers)}: a {self.record_name} has no optional scorer.")
        chosen: dict[str, Any] = {} if options.batch is None else {"batch": options.batch}
        if options.zero_shot:
            chosen["zero_shot"] = True
        if role == "unseen" and split == "test":
            site = without_training_split(site)
        model = open_on_site(self.load, result, site, adapter, **chosen)
        cohort = load_cohort(site)
        records = self.of_split(cohort, split)
        others = len(self.records(cohort)) - len(records)
        if split == "test" and others:
            LOGGER.warning(UNTESTED[role], site.name, others, self.record_name)
        records = records[: options.limit]
        if not records:
            raise DataError(f"site '{site.name}': no {self.record_name} in the split '{split}'.")
        kind = "none" if options.zero_shot else adapter_kind(adapter)
        tested = ScoredSite(site.name, role, kind, folder, seed)
        used = site.scorers if scorers is None else scorers
        return self.score(model, records, tested, used, options.progress)
