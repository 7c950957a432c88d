# SPDX-License-Identifier: Apache-2.0
"""FedTAR at one site: a client LoRA, a bridge from pictures to words, and factors made for each patient.

Paper: FedTAR, sections 3.1 to 3.3, TAR-7, TAR-11, TAR-14, TAR-15. With the hint `temporal`
an exchange trains on the visits of one number, without it on all visits together, as the baselines do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medflare.core.data_order import DataOrder, batches, derived_seed, drawn, examples_to_visit
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import EvaluationRecord
from medflare.core.site_description import BackboneFacts, SiteDescription
from medflare.core.tensors import SharedSpec, State, check_state
from medflare.core.update import Update
from medflare.data.heterogeneity import site_facts
from medflare.data.settings.site import SiteConfig
from medflare.data.visit_samples import VisitSamples, open_visits
from medflare.learners.client_terms import ClientTerms
from medflare.learners.fedtar.evaluation import curve_metrics, finish_site
from medflare.learners.fedtar.mixture import Mixture
from medflare.learners.fedtar.opening import (
    check_room,
    left_out,
    open_model,
    open_people,
    patient_of,
    times_of,
)
from medflare.learners.fedtar.people import People
from medflare.learners.fedtar.pictures import FreshPatches, KeptPatches, Pictures
from medflare.learners.fedtar.settings import METHOD, FedTARSettings
from medflare.learners.fedtar.visit_sums import VisitTrail, silence, visit_sums_spec
from medflare.learners.optim import adamw, cosine, scale_rates
from medflare.models.adapters.base import GENERIC
from medflare.models.longitudinal_generator import (
    PATIENT,
    PATIENT_PROJECTION,
    LongitudinalGenerator,
    VisitBatch,
    export_settings,
    parameter_counts,
)
from medflare.models.padding import IGNORED, pad
from medflare.models.report_generator import ADAPTER_PREFIX, DecodingSettings

FEWEST = 5
"""A loss of fewer validation visits, and a count of fewer visits, is not told: it could be one person's."""
POOLED = 0
"""In place of a visit's number where all visits are trained on together."""


def build(
    settings: Mapping[str, Any], site: SiteConfig, seed: int, cache: Path | None = None
) -> FedTARLearner:
    """The learner of a site, from the job's settings and the site's own file."""
    chosen = METHOD.resolve(settings)
    torch.set_num_threads(site.threads)
    samples = open_visits(site, chosen.model.encoder.stored_size, cache)
    people = open_people(site, samples, chosen, seed)
    model = open_model(site, chosen, seed)
    check_room(samples, model, chosen)
    return FedTARLearner(site.name, samples, people, model, chosen, seed, site.policy.min_examples)


class FedTARLearner:
    """Implements `learners.base.Learner` and `temporal_loop.Profiled`. One object lives for all rounds of a
    run.

    Args:
        fewest: training examples without which nothing may leave the site (its policy's `min_examples`); a
            visit of fewer is one that the site does not have.
    """

    def __init__(
        self,
        site: str,
        samples: VisitSamples,
        people: People | None,
        model: LongitudinalGenerator,
        settings: FedTARSettings,
        seed: int,
        fewest: int = 1,
    ) -> None:
        self.site, self.samples, self.people, self.model = site, samples, people, model
        self.settings, self.seed, self.fewest = settings, seed, fewest
        used = [row for split in ("train", "val", "test") for row in self.rows(split)]
        self.pictures: Pictures = (
            FreshPatches(samples, model, settings.rotation)
            if settings.train_backbone
            else KeptPatches(samples, model, used, settings.eval_batch)
        )
        reports = samples.reports(range(len(samples)))
        self.tokens = model.tokenise(reports, settings.max_report_tokens) if reports else []
        self._held_back = (PATIENT_PROJECTION,) if settings.mixture.source == "per_client" else ()
        self.trail = VisitTrail(settings.visits, times_of(samples, settings.visits))
        self.terms = ClientTerms(site, self._live)
        self._orders: dict[int, DataOrder] = {}
        self._received: State = {}
        self._spec: SharedSpec = {n: (tuple(t.shape), t.dtype) for n, t in self.initial_shared().items()}

    # ---- what is declared --------------------------------------------------------------------------------

    def rows(self, split: str, visit: int = POOLED) -> list[int]:
        """Rows of a split's visits 1..T, or of one of them; empty where the site has none."""
        found = self.samples.rows(split, visit or None)
        return [row for row in found if self.samples.visits[row].number <= self.settings.visits]

    def trained(self, visit: int) -> list[int]:
        """Training rows of an exchange; none where the site's policy lets nothing leave about so few."""
        found = self.rows("train", visit)
        return [] if visit and len(found) < self.fewest else found

    def describe(self) -> SiteDescription:
        model, visits = self.model, self.settings.visits
        export = export_settings(model, self.settings.decoding)
        return SiteDescription(
            backbone=BackboneFacts.of(model.backbone),
            parameters=parameter_counts(model, self._held_back),
            adapter_config=model.adapters.config_dict() | {"base_model_name_or_path": model.backbone.name},
            export=export | {"settings": self.settings.model_dump(mode="json"), "seed": self.seed},
            examples={split: len(self.rows(split)) for split in ("train", "val", "test")},
            skipped=left_out(self.samples, visits),
            heterogeneity=site_facts(self.samples.studies()) | self._visit_facts(),
            settings=self.settings.model_dump(mode="json"),
        )

    def _visit_facts(self) -> dict[str, Any]:
        """n_{k,t} for t = 1..T of each split, 0 for fewer than FEWEST."""
        visits = range(1, self.settings.visits + 1)
        counts = {s: [len(self.rows(s, t)) for t in visits] for s in ("train", "val", "test")}
        return {"visits": {s: [n if n >= FEWEST else 0 for n in found] for s, found in counts.items()}}

    def shared_spec(self) -> SharedSpec:
        return self._spec

    def sums_spec(self, sites: int) -> SharedSpec:
        return visit_sums_spec(self.settings.visits) | self.model.adapters.auxiliary_sums_spec()

    def initial_shared(self) -> State:
        return {n: t.detach().cpu().float().clone() for n, t in self._live().items()}

    def _live(self) -> dict[str, Tensor]:
        """The shared tensors themselves."""
        own = {n: t for n, t in self.model.shared_tensors().items() if not n.startswith(self._held_back)}
        return own | {
            ADAPTER_PREFIX + n: p for n, p in self.model.adapters.shared_parameters(GENERIC).items()
        }

    def load_shared(self, state: State) -> None:
        check_state(state, self._spec, f"site '{self.site}': the server's state")
        with torch.no_grad():
            for name, tensor in self._live().items():
                tensor.copy_(state[name])
        self._received = self.initial_shared()

    # ---- the mixture of profiles -------------------------------------------------------------------------

    def _people(self) -> People:
        if self.people is None:
            raise ConfigError(
                "the job asks for a mixture of patients' profiles (controller setting `mixture`), and "
                "settings.personal is false. Leave one of the two out."
            )
        return self.people

    def profile_sums(self) -> State:
        """As in `temporal_loop.Profiled`."""
        return self._people().profile_sums()

    def mixture_sums(self, mixture: Mixture) -> State:
        """As in `temporal_loop.Profiled`."""
        return self._people().mixture_sums(mixture)

    def take_mixture(self, mixture: Mixture) -> None:
        """As in `temporal_loop.Profiled`."""
        self._people().take_mixture(mixture)

    # ---- training ----------------------------------------------------------------------------------------

    def fit(self, plan: RoundPlan) -> Update:
        """One exchange: the slopes of the last round where it is over, then this visit's rows."""
        started = time.monotonic()
        hint = plan.hints.visit
        visit = hint.visit if hint is not None else POOLED
        sums = silence(self.settings.visits)
        if visit:
            sums = self.trail.receive(plan, self._received, self._validation_gradient)
        rows, metrics = self.trained(visit), {"visit": float(visit), "steps": 0.0}
        self.model.adapters.begin_round(plan.totals, plan.round, plan.rounds)
        self.terms.begin(plan)
        if rows:
            metrics |= self._train(self._cut(plan, visit, rows), plan)
        elif not visit:
            raise UpdateError(f"site '{self.site}' has no visit to train on; see `medflare cohort inspect`.")
        told = self.terms.finish()
        held_out = self.rows("val", visit)
        if rows and len(held_out) >= FEWEST:
            metrics["val_loss"] = self.rows_loss(held_out)
        metrics |= told.metrics | {"seconds": time.monotonic() - started}
        delta = {n: t - self._received[n] for n, t in self.initial_shared().items()}
        sums |= told.sums | self.model.adapters.auxiliary_sums(len(rows))
        return Update(delta=delta, examples=len(rows), metrics=metrics, sums=sums, factor=told.factor)

    def _cut(self, plan: RoundPlan, visit: int, rows: list[int]) -> list[list[int]]:
        """The batches of this exchange: what the plan asks for, else `local_epochs` passes."""
        size = min(self.settings.batch, len(rows))
        count = examples_to_visit(plan, len(rows), size, self.settings.local_epochs)
        order = self._orders.setdefault(visit, self._order(visit, len(rows)))
        taken = [rows[place] for place in order.take(count)]
        seed = derived_seed(self.seed, self.site, plan.round)
        return batches(taken, [len(ids) for ids in self.tokens], size, seed)

    def _order(self, visit: int, size: int) -> DataOrder:
        """Other patients first at other visits; one visit alone is in the order of all pooled."""
        return DataOrder(size, derived_seed(self.seed, self.site, "order", max(visit, 1)))

    def _train(self, cut: list[list[int]], plan: RoundPlan) -> dict[str, float]:
        """One step on each batch; the mean of their losses."""
        optimiser = self._optimiser()
        self.terms.watch(optimiser, len(cut))
        seed = derived_seed(self.seed, self.site, plan.round)
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.model.train()
        total = 0.0
        for step, rows in enumerate(cut):
            scale_rates(optimiser, self._rate((plan.round + step / len(cut)) / max(plan.rounds, 1)))
            total += self._step(optimiser, rows, generator) / len(cut)
        self.model.eval()
        return {"loss": total, "steps": float(len(cut))}

    def _optimiser(self) -> torch.optim.AdamW:
        """Anew in every exchange (1.6); what stays at the site learns too."""
        patient = [t for n, t in self.model.shared_tensors().items() if n.startswith(PATIENT)]
        rest = [t for n, t in self._live().items() if not n.startswith(PATIENT)]
        lr, scale = self.settings.lr, self.settings.patient_lr_scale
        groups = [(_learning(rest), lr), (_learning(patient), lr * scale)]
        return adamw(groups, self.settings.weight_decay)

    def _rate(self, progress: float) -> float:
        """Learning-rate factor at `progress` in [0, 1] of all exchanges."""
        chosen = self.settings
        if chosen.schedule == "cosine" or progress < chosen.warmup:
            return cosine(progress, chosen.warmup)
        return 1.0

    def _step(self, optimiser: torch.optim.Optimizer, rows: list[int], generator: torch.Generator) -> float:
        """The loss of one batch, after a step on it; UpdateError before anything moves where it is no
        number."""
        losses_of, count = self._losses(rows, generator)
        loss = losses_of.sum() / count
        if not torch.isfinite(loss):
            raise UpdateError(
                f"site '{self.site}': the loss is {loss.item()}; nothing of this round was kept. Lower "
                "settings.lr, or look for odd images with `medflare cohort inspect --images`."
            )
        optimiser.zero_grad(set_to_none=True)
        (loss + self.model.adapters.penalty()).backward()
        if self.settings.clip is not None:
            parameters = [p for group in optimiser.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.settings.clip)
        optimiser.step()
        self.model.adapters.after_step()
        return loss.item()

    def _batch(self, rows: Sequence[int], turned: torch.Generator | None = None) -> VisitBatch:
        patches, there = self.pictures.patches(rows, turned)
        assigned = None
        if self.people is not None:
            assigned = self.people.assigned([patient_of(self.samples, row) for row in rows])
        return VisitBatch(patches, there, self.samples.priors(rows), assigned)

    def _losses(self, rows: Sequence[int], turned: torch.Generator | None = None) -> tuple[Tensor, int]:
        """(B, T) losses of the report tokens of `rows`, and how many tokens that is."""
        ids, targets = pad([self.tokens[row] for row in rows])
        found = self.model.token_losses(self._batch(rows, turned), ids, targets)
        return found, int((targets != IGNORED).sum())

    def _validation_gradient(self) -> tuple[State, int]:
        """∇ of the mean loss per token over all validation visits, at the state as received, and their
        number."""
        rows, live = self.rows("val"), self._live()
        learning = {n: t for n, t in live.items() if t.requires_grad}
        if not rows:
            return {}, 0
        count = sum(len(self.tokens[row]) for row in rows)
        for parameter in learning.values():
            parameter.grad = None
        with self.model.evaluating():
            for part in self._parts(rows):
                (self._losses(part)[0].sum() / count).backward()
        found = {n: torch.zeros_like(p) if p.grad is None else p.grad.detach() for n, p in learning.items()}
        for parameter in learning.values():
            parameter.grad = None
        return found, len(rows)

    # ---- evaluation and what stays -----------------------------------------------------------------------

    def _parts(self, rows: list[int]) -> list[list[int]]:
        size = self.settings.eval_batch
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    @torch.no_grad()
    def rows_loss(self, rows: list[int]) -> float:
        """Mean negative log-likelihood per report token."""
        total, count = 0.0, 0
        with self.model.evaluating():
            for part in self._parts(rows):
                found, tokens = self._losses(part)
                total, count = total + float(found.sum(dtype=torch.float64)), count + tokens
        return total / count

    def draft(self, rows: list[int], decoding: DecodingSettings | None = None) -> list[str]:
        """Reports of `rows` with the state in use; the settings' decoding where none is given."""
        with self.model.evaluating(), torch.no_grad():
            return [
                text
                for part in self._parts(rows)
                for text in self.model.draft(self._batch(part), decoding or self.settings.decoding)
            ]

    def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
        if count := plan.hints.probe:
            rows = drawn(self.rows(split), count, self.seed, self.site, plan.round)
            return {"loss": self.rows_loss(rows)} if rows else {}
        if plan.hints.loss_only:
            rows = self.rows(split)[: plan.limit]
            return {"loss": self.rows_loss(rows)} if rows else {}
        return curve_metrics(self, split, plan.limit if plan.limit is not None else self.settings.eval_limit)

    def finish(self, plan: RoundPlan, folder: Path) -> list[EvaluationRecord]:
        return finish_site(self, folder, plan.limit)

    def local_state(self) -> tuple[State, dict[str, Any]]:
        trail, values = self.trail.state()
        tensors = trail | self.terms.state() | (self.people.state() if self.people else {})
        own = self.model.shared_tensors()
        tensors |= {f"local.{n}": own[n].detach().cpu().clone() for n in own if n.startswith(self._held_back)}
        positions = {str(visit): order.position for visit, order in self._orders.items()}
        return tensors, {"trail": values, "positions": positions}

    def load_local_state(self, tensors: State, values: Mapping[str, Any]) -> None:
        self.trail.restore(tensors, values["trail"])
        tensors = self.terms.restore(tensors)
        if self.people is not None:
            self.people.restore(tensors)
        with torch.no_grad():
            for name, tensor in self.model.shared_tensors().items():
                if name.startswith(self._held_back):
                    tensor.copy_(tensors[f"local.{name}"])
        self._orders = {}
        for visit, position in values["positions"].items():
            order = self._order(int(visit), len(self.trained(int(visit))))
            order.position = int(position)
            self._orders[int(visit)] = order


def _learning(tensors: Sequence[Tensor]) -> list[nn.Parameter]:
    return [t for t in tensors if isinstance(t, nn.Parameter) and t.requires_grad]
