# SPDX-License-Identifier: Apache-2.0
"""Hostile sites among seven against every rule: macro F1 of the 14 conditions.

Seven synthetic hospitals with scanners, prevalences and sizes of their own. The embedded encoder's features
of their radiographs are computed once and kept; what is trained in federation is a head on them (one hidden
layer, 14 conditions). Quality is that of the final head on the pooled test studies of all seven. An attacker
keeps its true number of examples.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from medflare.aggregation import make_rule
from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import ScoresCandidates, factor_clip, round_hints
from medflare.aggregation.robust import ByzantineRule
from medflare.core.conditions import CONDITIONS, Code
from medflare.core.config import Settings
from medflare.core.errors import UpdateError
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.evaluation.label_metrics import label_statistics
from medflare.learners.text_task.influence import self_influence
from medflare.synthetic.hospitals import generate
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL, HospitalProfile
from method_comparison.comparison_table import Run
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.hostile_updates import ATTACKS, sent

SIZES = (300, 260, 220, 180, 150, 120, 100)
"""Patients of the seven hospitals."""
JUDGE = replace(UNSEEN_HOSPITAL, name="server", patients=60)
"""Whose studies stand for D_v, at the server and, in client mode, at every site."""
HIDDEN, BATCH, LR = 64, 32, 3e-3
SCORES = "scores.npz"
MOST_HOSTILE = 3


class AttackSettings(Settings):
    """rounds of steps mini-batches each; share: of the patients, for a quick look."""

    rounds: int = Field(default=12, ge=1)
    steps: int = Field(default=20, ge=1)
    share: float = Field(default=1.0, gt=0, le=1)


class AttackMethod(Settings):
    """A rule. One that withstands hostile sites is told their true number, and runs without its guarantee."""

    rule: str
    rule_settings: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Features (studies, d), targets (studies, 14) of 0 and 1, and the patient of each study, by split."""

    features: dict[str, Tensor]
    targets: dict[str, Tensor]
    patients: dict[str, list[str]]


# ---- data: features of frozen pictures ---------------------------------------------------------------------


def hospitals() -> list[HospitalProfile]:
    """Seven of them: the scanners and styles of the demo's three in turn, other patients and prevalences."""
    rng = np.random.default_rng(7)
    found = []
    for k, patients in enumerate(SIZES):
        base = DEMO_HOSPITALS[k % len(DEMO_HOSPITALS)]
        prevalence = {
            name: value * float(np.exp(rng.normal(0, 0.4))) for name, value in base.prevalence.items()
        }
        found.append(
            replace(base, name=f"site-{k + 1}", seed=700 + k, patients=patients, prevalence=prevalence)
        )
    return found


def load(profile: HospitalProfile, folder: Path, share: float) -> Site:
    """A hospital's features, from their file where there is one."""
    patients = max(int(profile.patients * share), 20)
    file = folder / f"{profile.name}-{patients}-by-patient.npz"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(file, **_computed(profile, patients))  # type: ignore[arg-type]
    with np.load(file) as data:
        kept = {name: torch.from_numpy(data[name]) for name in ("features", "targets")}
        splits, names = data["splits"], data["patients"]
    rows = {split: torch.from_numpy(np.flatnonzero(splits == split)) for split in ("train", "val", "test")}
    by_split = {name: {split: kept[name][index] for split, index in rows.items()} for name in kept}
    of_split = {split: [f"{profile.name}/{names[i]}" for i in index] for split, index in rows.items()}
    return Site(features=by_split["features"], targets=by_split["targets"], patients=of_split)


def _computed(profile: HospitalProfile, patients: int) -> dict[str, np.ndarray]:
    from medflare.models.encoders import EncoderSettings, VisualEncoder

    encoder = VisualEncoder(EncoderSettings()).eval()
    features, targets, splits, names = [], [], [], []
    pictures = generate(profile, patients, size=96)
    while studies := list(itertools.islice(pictures, 32)):
        images = torch.stack([torch.from_numpy(np.asarray(s.image)) for s in studies])[:, None]
        with torch.no_grad():
            tokens, pooled = encoder(images)
        features.append(torch.cat([pooled, tokens.amax(1)], dim=1))
        targets += [[float(code == Code.POSITIVE) for code in s.codes] for s in studies]
        splits += [s.split for s in studies]
        names += [s.patient_id for s in studies]
    return {
        "features": F.layer_norm(torch.cat(features), (2 * encoder.width,)).numpy(),
        "targets": np.array(targets, dtype=np.float32),
        "splits": np.array(splits),
        "patients": np.array(names),
    }


# ---- what is trained ---------------------------------------------------------------------------------------


class Head:
    """One hidden layer on frozen features; the shared state is all of it."""

    def __init__(self, width: int) -> None:
        self.net = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, len(CONDITIONS)))

    def state(self) -> State:
        return {name: value.detach().clone() for name, value in self.net.state_dict().items()}

    def load(self, state: State) -> None:
        self.net.load_state_dict(state)

    def measured(self, state: State, features: Tensor, targets: Tensor) -> float:
        """Loss of a state on studies; infinite where it is not a number."""
        self.load(state)
        with torch.no_grad():
            loss = float(_loss(self.net(features), targets))
        return loss if math.isfinite(loss) else math.inf

    def fit(
        self, state: State, sites: Mapping[str, Site], steps: int, generator: torch.Generator
    ) -> dict[str, Update]:
        """`steps` mini-batches of AdamW at every site from the same state, all sites in one batched pass."""
        copies = {n: v.expand(len(sites), *v.shape).clone().requires_grad_() for n, v in state.items()}
        optimiser = torch.optim.AdamW(copies.values(), lr=LR, weight_decay=0.01, fused=True)
        train = [(site.features["train"], site.targets["train"]) for site in sites.values()]
        for _ in range(steps):
            rows = [torch.randint(len(x), (BATCH,), generator=generator) for x, _ in train]
            features = torch.stack([x[i] for (x, _), i in zip(train, rows, strict=True)])
            targets = torch.stack([y[i] for (_, y), i in zip(train, rows, strict=True)])
            optimiser.zero_grad()
            logits = torch.func.vmap(lambda own, x: torch.func.functional_call(self.net, own, x))(
                copies, features
            )
            (len(train) * _loss(logits, targets)).backward()
            optimiser.step()
        updates = {}
        for k, (name, site) in enumerate(sites.items()):
            after = {n: v[k].detach().clone() for n, v in copies.items()}
            val = self.measured(after, site.features["val"], site.targets["val"])
            delta = {n: v - state[n] for n, v in after.items()}
            updates[name] = Update(delta=delta, examples=len(train[k][0]), metrics={"val_loss": val})
        return updates


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in which a positive counts three times: most conditions are rare."""
    weight = torch.full((len(CONDITIONS),), 3.0)
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight)


def federated(
    head: Head,
    sites: Mapping[str, Site],
    judge: Site,
    rule: AggregationRule,
    attack: str,
    hostile: Sequence[str],
    given: AttackSettings,
    seed: int,
) -> State:
    """The head's state after all rounds."""
    torch.manual_seed(seed)
    state = Head(judge.features["train"].shape[1]).state()
    generator = torch.Generator().manual_seed(seed)
    own = dict(sites)
    if attack == "label_shuffled":
        own |= {site: _shuffled(sites[site], generator) for site in hostile}
    d_v = (judge.features["train"], judge.targets["train"])
    scored = rule.capability(ScoresCandidates)
    if scored is not None and scored.scored_by == "server":
        scored.set_score(lambda _, candidate: head.measured(candidate, *d_v))
    for _ in range(given.rounds):
        honest = head.fit(state, own, given.steps, generator)
        if factor_clip(rule):
            _score_themselves(head, state, honest, d_v, rule)
        rule.begin(state)
        for site, update in sent(attack, honest, hostile, math.exp(factor_clip(rule)), generator).items():
            try:
                rule.add(site, update)
            except UpdateError:
                continue
        state = rule.finish()
    return state


def _score_themselves(
    head: Head, state: State, honest: Mapping[str, Update], d_v: tuple[Tensor, Tensor], rule: AggregationRule
) -> None:
    """Client mode of `influence`: every site weighs its own update by its loss on D_v."""
    reference, hint = head.measured(state, *d_v), round_hints(rule).influence
    assert hint is not None, "only rules of a site's own factor come here"
    for update in honest.values():
        loss = head.measured({n: v + update.delta[n] for n, v in state.items()}, *d_v)
        update.factor = self_influence(loss, reference, hint.temperature, hint.clip)


def _shuffled(site: Site, generator: torch.Generator) -> Site:
    """A site whose training and validation studies have one another's labels."""
    targets = dict(site.targets)
    for split in ("train", "val"):
        targets[split] = targets[split][torch.randperm(len(targets[split]), generator=generator)]
    return replace(site, targets=targets)


# ---- the comparison ----------------------------------------------------------------------------------------


class Attacks(ComparisonTask[AttackSettings, AttackMethod]):
    """Partition `clean`, or ATTACK_N with N of seven sites hostile, others in each seed."""

    name = "attacks"
    settings, method_settings = AttackSettings, AttackMethod
    partitions = ("clean", *(f"{name}_{n}" for name in ATTACKS for n in range(1, MOST_HOSTILE + 1)))
    case_columns: ClassVar[Mapping[str, Column]] = {"label_macro_f1": Column(title="macro F1")}

    def prepare(self, settings: AttackSettings, partition: str, seed: int, shared: Path) -> None:
        for profile in (*hospitals(), JUDGE):
            load(profile, shared / "features", settings.share)

    def train(self, unit: Unit[AttackSettings, AttackMethod]) -> Measured:
        logging.getLogger("medflare.aggregation").setLevel(logging.ERROR)  # the guarantee's warning
        share, seed = unit.settings.share, unit.seed
        sites = {p.name: load(p, unit.shared / "features", share) for p in hospitals()}
        judge = load(JUDGE, unit.shared / "features", share)
        attack, _, count = unit.partition.rpartition("_")
        attackers = int(count) if attack else 0
        hostile = list(np.random.default_rng(seed).permutation(sorted(sites))[:attackers])
        rule = make_tested(unit.own, attackers)
        head = Head(judge.features["train"].shape[1])
        state = federated(head, sites, judge, rule, attack, hostile, unit.settings, seed)
        write_scores(head, state, sites, unit.folder / SCORES)
        return Measured()

    def places(self, settings: AttackSettings, partition: str, folder: Path) -> dict[str, Run]:
        if not (folder / SCORES).is_file():
            return {}
        with np.load(folder / SCORES) as data:
            statistics = label_statistics(data["gold"], data["predicted"])
            patients = data["patients"].tolist()
        return {"all sites, pooled": Run({"label_macro_f1": statistics["label_macro_f1"]}, patients)}


def make_tested(own: AttackMethod, attackers: int) -> AggregationRule:
    """Return the rule; one that withstands hostile sites is told how many there are (at least one)."""
    plain = make_rule(own.rule, own.rule_settings)
    if plain.capability(ByzantineRule) is None:
        return plain
    return make_rule(own.rule, {**own.rule_settings, "f": max(attackers, 1), "allow_unsafe": True})


def write_scores(head: Head, state: State, sites: Mapping[str, Site], path: Path) -> None:
    """Write gold and predicted conditions of the pooled test studies (studies, 14), and their patients."""
    head.load(state)
    features = torch.cat([site.features["test"] for site in sites.values()])
    with torch.no_grad():
        predicted = (head.net(features) > 0).int().numpy()
    gold = torch.cat([site.targets["test"] for site in sites.values()]).int().numpy()
    patients = [name for site in sites.values() for name in site.patients["test"]]
    np.savez(path, gold=gold, predicted=predicted, patients=np.array(patients))
