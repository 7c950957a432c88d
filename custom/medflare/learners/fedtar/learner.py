# SPDX-License-Identifier: Apache-2.0
"""FedTAR at one site: a client LoRA, a projection from images to words, and factors made for each patient.

Paper: FedTAR, sections 3.1 to 3.3; TAR-7, TAR-11, TAR-14, TAR-15, TAR-19. With the hint `visit` an exchange
trains on the visits of one number, without it on all visits together, as the baselines do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medflare.core.data_order import DataOrder, batches, derived_seed, drawn, examples_to_visit
from medflare.core.errors import UpdateError
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.optimiser_state import moments, restore_moments
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.task_progress import with_progress
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.data.heterogeneity import site_facts
from medflare.data.settings.site import SiteConfig
from medflare.data.visit_samples import VisitSamples, open_visits
from medflare.learners.base import BaseLearner, require_finite
from medflare.learners.fedtar.evaluation import curve_metrics, finish_site, names_of
from medflare.learners.fedtar.patient_assignments import PatientAssignments
from medflare.learners.fedtar.patient_floors import FEWEST
from medflare.learners.fedtar.settings import METHOD, FedTARSettings
from medflare.learners.fedtar.site_setup import (
    check_room,
    open_model,
    open_patients,
    skipped_visits,
    visit_time_sums,
)
from medflare.learners.fedtar.visit_reports import VisitReports
from medflare.learners.fedtar.visit_sums import VisitTrail, visit_sums_spec, zero_sums
from medflare.learners.optim import adamw, rate_factor, scale_rates, take_step
from medflare.models.adapters.base import GENERIC
from medflare.models.longitudinal_generator import (
    PATIENT,
    PATIENT_PROJECTION,
    LongitudinalGenerator,
    export_settings,
    parameter_counts,
)
from medflare.models.report_generator import ADAPTER_PREFIX, DecodingSettings
from medflare.tasks.reports.plausibility import write_visit_reference

POOLED = 0
"""In place of a visit's number where all visits are trained on together."""
OPTIMISER = "optimiser"
"""Before the names of AdamW's moments in the local state."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> FedTARLearner:
    """Build the learner of a site from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    torch.set_num_threads(site.threads)
    samples = open_visits(site, chosen.model.encoder.stored_size, cache)
    patients = open_patients(site, samples, chosen, seed)
    model = open_model(site, chosen, seed)
    check_room(samples, model, chosen)
    return FedTARLearner(site.name, samples, patients, model, chosen, seed, site.policy.min_examples)


class FedTARLearner(BaseLearner):
    """FedTAR at one site.

    Args:
        fewest: training examples without which nothing may leave the site (its policy's `min_examples`); a
            visit of fewer is one that the site does not have.
    """

    def __init__(
        self,
        site: str,
        samples: VisitSamples,
        patients: PatientAssignments | None,
        model: LongitudinalGenerator,
        settings: FedTARSettings,
        seed: int,
        fewest: int = 1,
    ) -> None:
        self.samples, self.patients, self.model = samples, patients, model
        self.settings, self.fewest = settings, fewest
        self._kept_local = (PATIENT_PROJECTION,) if settings.mixture.source == "per_client" else ()
        super().__init__(site, seed)
        used = [row for split in ("train", "val", "test") for row in self.rows(split)]
        self.reports = VisitReports(samples, patients, model, settings, used)
        self.trail = VisitTrail(settings.visits, visit_time_sums(samples, settings.visits, self.least))
        self._orders: dict[int, DataOrder] = {}
        self._optimiser = self._new_optimiser()

    # ---- what is declared --------------------------------------------------------------------------------

    def rows(self, split: str, visit: int = POOLED) -> list[int]:
        """Return the rows of a split's visits 1..T, or of one of them; empty where the site has none."""
        rows = self.samples.rows(split, visit or None)
        return [row for row in rows if self.samples.visits[row].number <= self.settings.visits]

    def training_rows(self, visit: int) -> list[int]:
        """Return the training rows of an exchange; none where the policy lets nothing leave about so few."""
        rows = self.rows("train", visit)
        return [] if visit and len(rows) < self.fewest else rows

    def describe(self) -> SiteDescription:
        model, visits = self.model, self.settings.visits
        export = export_settings(model, self.settings.decoding)
        return SiteDescription(
            backbone=BackboneFacts.of(model.backbone),
            parameters=parameter_counts(model, self._kept_local),
            adapter_config=model.adapters.config_dict() | {"base_model_name_or_path": model.backbone.name},
            export=export | {"settings": self.settings.model_dump(mode="json"), "seed": self.seed},
            examples={split: len(self.rows(split)) for split in ("train", "val", "test")},
            skipped=skipped_visits(self.samples, visits),
            heterogeneity=site_facts(self.samples.studies()) | self._visit_facts(),
        )

    @property
    def least(self) -> int:
        """Visits on which a number about one of 1..T rests at least, if it is to leave the site."""
        return max(self.fewest, FEWEST)

    def _visit_facts(self) -> dict[str, Any]:
        """Return n_{k,t} for t = 1..T of each split, 0 for fewer than `least`."""
        visits = range(1, self.settings.visits + 1)
        counts = {s: [len(self.rows(s, t)) for t in visits] for s in ("train", "val", "test")}
        return {
            "visits": {s: [n if n >= self.least else 0 for n in numbers] for s, numbers in counts.items()}
        }

    def sums_spec(self, sites: int) -> SharedSpec:
        return visit_sums_spec(self.settings.visits) | self.model.adapters.auxiliary_sums_spec()

    def initial_shared(self) -> State:
        return {n: t.detach().cpu().float().clone() for n, t in self.live().items()}

    def live(self) -> dict[str, Tensor]:
        tensors = self.model.shared_tensors()
        shared = {n: t for n, t in tensors.items() if not n.startswith(self._kept_local)}
        return shared | {
            ADAPTER_PREFIX + n: p for n, p in self.model.adapters.shared_parameters(GENERIC).items()
        }

    # ---- the mixture of profiles -------------------------------------------------------------------------

    @property
    def patient_profiles(self) -> PatientAssignments | None:
        return self.patients

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """Train one exchange: the slopes of the last round where one is over, then the visit."""
        started = time.monotonic()
        hint = plan.hints.visit
        visit = hint.visit if hint is not None else POOLED
        sums = zero_sums(self.settings.visits)
        if visit:
            sums = self.trail.receive(plan, self._received, self._validation_gradient)
        rows, metrics = self.training_rows(visit), {"visit": float(visit), "steps": 0.0}
        self.model.adapters.begin_round(plan.totals, plan.round, plan.rounds)
        self.terms.begin(plan)
        if rows:
            metrics |= self._train(self._cut(plan, visit, rows), plan)
        elif not visit:
            raise UpdateError(f"site '{self.site}' has no visit to train on; see `medflare cohort inspect`.")
        output = self.terms.finish()
        held_out = self.rows("val", visit)
        if rows and len(held_out) >= self.least:  # a loss of fewer could be one person's
            metrics["val_loss"] = self.rows_loss(held_out)
        metrics |= output.metrics | {"seconds": time.monotonic() - started}
        delta = self.delta()
        sums |= output.sums | self.model.adapters.auxiliary_sums(len(rows))
        return Update(delta=delta, examples=len(rows), metrics=metrics, sums=sums, factor=output.factor)

    def _cut(self, plan: RoundPlan, visit: int, rows: list[int]) -> list[list[int]]:
        """Return the batches of this exchange: what the plan asks for, else `local_epochs` passes."""
        size = min(self.settings.batch, len(rows))
        count = examples_to_visit(plan, len(rows), size, self.settings.local_epochs)
        order = self._orders.setdefault(visit, self._order(visit, len(rows)))
        taken = [rows[place] for place in order.take(count)]
        seed = derived_seed(self.seed, self.site, plan.round)
        return batches(taken, [len(ids) for ids in self.reports.tokens], size, seed)

    def _order(self, visit: int, size: int) -> DataOrder:
        """Return the order of a visit's patients; all visits pooled are in the order of the first one."""
        return DataOrder(size, derived_seed(self.seed, self.site, "order", max(visit, 1)))

    def _train(self, cut: list[list[int]], plan: RoundPlan) -> dict[str, float]:
        """Take one step on each batch; the mean of their losses."""
        if not self.settings.keep_moments:
            self._optimiser = self._new_optimiser()
        optimiser = self._optimiser
        self.terms.watch(optimiser, len(cut))
        seed = derived_seed(self.seed, self.site, plan.round)
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model.train()
        total = 0.0
        for step, rows in enumerate(with_progress(cut)):
            scale_rates(optimiser, self._rate((plan.round + step / len(cut)) / max(plan.rounds, 1)))
            total += self._step(optimiser, rows, generator) / len(cut)
        self.model.eval()
        return {"loss": total, "steps": float(len(cut))}

    def _new_optimiser(self) -> torch.optim.AdamW:
        """Return AdamW without moments; what stays at the site learns too.

        It is of every parameter that may ever learn: one that an adapter method freezes for a round has no
        gradient then, so that it takes no step and keeps its moments.
        """
        patient = [t for n, t in self.model.shared_tensors().items() if n.startswith(PATIENT)]
        rest = [t for n, t in self.live().items() if not n.startswith(PATIENT)]
        lr, scale = self.settings.lr, self.settings.patient_lr_scale
        groups = [(_parameters(rest), lr), (_parameters(patient), lr * scale)]
        return adamw(groups, self.settings.weight_decay)

    def _rate(self, progress: float) -> float:
        """Return the learning-rate factor at `progress` in [0, 1] of all exchanges."""
        return rate_factor(self.settings.schedule, progress, self.settings.warmup)

    def _step(self, optimiser: torch.optim.Optimizer, rows: list[int], generator: torch.Generator) -> float:
        """Take a step on one batch and return its loss; UpdateError before anything moves if not finite."""
        token_losses, count = self.reports.losses(rows, generator)
        loss = token_losses.sum() / count
        require_finite(loss, setting="settings.lr", records="images", site=self.site)
        take_step(optimiser, loss + self.model.adapters.penalty(), self.settings.clip)
        self.model.adapters.after_step()
        return loss.item()

    def _validation_gradient(self) -> tuple[State, int]:
        """Return ∇L_val, of the mean loss per token over all validation visits, and the number of visits.

        It is taken at the weights as received, before training. The patient adapter and the projection take
        part in it where they are communicated; what stays at the site does not. Of fewer than `least` visits
        it could be one person's, as a loss could, and there is none.
        """
        rows = self.rows("val")
        if len(rows) < self.least:
            return {}, 0
        learning = {n: t for n, t in self.live().items() if t.requires_grad}
        return self.reports.gradient(rows, learning), len(rows)

    # ---- evaluation and what stays -----------------------------------------------------------------------

    def rows_loss(self, rows: list[int]) -> float:
        """Return the mean negative log-likelihood per report token."""
        return self.reports.mean_loss(rows)

    def draft(self, rows: list[int], decoding: DecodingSettings | None = None) -> list[str]:
        """Return reports of `rows` with the state in use; the settings' decoding where none is given."""
        return self.reports.draft(rows, decoding or self.settings.decoding)

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        if plan.hints.probe or plan.hints.loss_only:
            rows = self.rows(split)[: plan.limit]
            if plan.hints.probe:
                rows = drawn(self.rows(split), plan.hints.probe, self.seed, self.site, plan.round)
            return Metrics({"loss": self.rows_loss(rows)}, len(rows)) if rows else Metrics()
        return curve_metrics(self, split, plan.limit if plan.limit is not None else self.settings.eval_limit)

    def metric_names(self) -> MetricNames:
        return names_of(self.settings.visits)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        write_visit_reference(self.model, self.samples, site=self.site, seed=self.seed, folder=folder)
        return finish_site(self, folder, plan.limit)

    def local_state(self) -> tuple[State, dict[str, Any]]:
        trail, values = self.trail.state()
        tensors = trail | self.terms.state() | (self.patients.state() if self.patients else {})
        shared = self.model.shared_tensors()
        tensors |= {
            f"local.{n}": t.detach().cpu().clone()
            for n, t in shared.items()
            if n.startswith(self._kept_local)
        }
        positions = {str(visit): order.position for visit, order in self._orders.items()}
        if self.settings.keep_moments:
            tensors |= moments(self._optimiser, OPTIMISER)
        return tensors, {"trail": values, "positions": positions}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.trail.restore(tensors, values["trail"])
        tensors = self.terms.restore(tensors)
        if self.settings.keep_moments:
            restore_moments(self._optimiser, tensors, OPTIMISER)
        if self.patients is not None:
            self.patients.restore(tensors)
        with torch.no_grad():
            for name, tensor in self.model.shared_tensors().items():
                if name.startswith(self._kept_local):
                    tensor.copy_(tensors[f"local.{name}"])
        self._orders = {}
        for visit, position in values["positions"].items():
            order = self._order(int(visit), len(self.training_rows(int(visit))))
            order.position = int(position)
            self._orders[int(visit)] = order


def _parameters(tensors: Sequence[Tensor]) -> list[nn.Parameter]:
    """Return the parameters among tensors; the others are buffers, which no optimiser moves."""
    return [t for t in tensors if isinstance(t, nn.Parameter)]
