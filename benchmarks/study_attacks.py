# SPDX-License-Identifier: Apache-2.0
"""Hostile sites among seven against every rule: final macro F1 of the 14 conditions, as Markdown tables.

    python benchmarks/study_attacks.py [--out studies/attacks] [--seeds 3] [--attackers 1,2,3] [--rules ...]

Seven synthetic hospitals with scanners, prevalences and sizes of their own. The embedded encoder's features
of their radiographs are computed once and kept; what is trained in federation is a head on them (one hidden
layer, 14 conditions). Quality is that of the final head on the pooled test studies of all seven. An attacker
keeps its true number of examples. Intervals resample seeds and test studies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import ATTACKS, sent
from medflare.aggregation import RULES, make_rule
from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import (
    AsksClientTerms,
    ScoresCandidates,
    factor_clip,
    round_hints,
)
from medflare.aggregation.robust import ByzantineRule
from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError, UpdateError
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.evaluation.label_metrics import label_statistics
from medflare.evaluation.statistics import Statistic, over_seeds
from medflare.learners.text_task.influence import self_influence
from medflare.synthetic.hospitals import generate
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL, HospitalProfile

SIZES = (300, 260, 220, 180, 150, 120, 100)
"""Patients of the seven hospitals."""
JUDGE = replace(UNSEEN_HOSPITAL, name="server", patients=60)
"""Whose studies stand for D_v, at the server and, in client mode, at every site."""
HIDDEN, BATCH, LR = 64, 32, 3e-3
TEMPERATURE = 0.1
WITHOUT_LORA = [
    n
    for n, rule in ((n, make_rule(n, {})) for n in sorted(RULES))
    if n != "weighted_mean" and not (rule.facts.sharing or isinstance(rule, AsksClientTerms))
]
"""Rules that ask nothing of LoRA factors, of a site's own steps or of who takes part."""


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
    given: argparse.Namespace,
    seed: int,
) -> State:
    """The head's state after all rounds."""
    torch.manual_seed(seed)
    state = Head(judge.features["train"].shape[1]).state()
    generator = torch.Generator().manual_seed(seed)
    own = dict(sites)
    if attack == "label-shuffled":
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


# ---- the tables --------------------------------------------------------------------------------------------


def rule_rows(names: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Row -> rule and settings; `f` is the true number of attackers, filled in later."""
    rows: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in names}
    if "influence" in rows:
        rows["influence"] = ("influence", {"temperature": TEMPERATURE})
        rows["influence (client)"] = ("influence", {"temperature": TEMPERATURE, "mode": "client"})
    if "l_fedavg" in rows:
        rows["l_fedavg (server)"] = ("l_fedavg", {"loss_source": "server"})
    return rows


def made(rule: str, settings: Mapping[str, Any], attackers: int) -> AggregationRule:
    """A rule that is told how many sites are hostile (at least one)."""
    plain = make_rule(rule, settings)
    if not isinstance(plain, ByzantineRule):
        return plain
    return make_rule(rule, {**settings, "f": max(attackers, 1), "allow_unsafe": True})


def scored(head: Head, state: State, sites: Mapping[str, Site]) -> Statistic:
    """Macro F1 on the pooled test studies."""
    head.load(state)
    features = torch.cat([site.features["test"] for site in sites.values()])
    gold = torch.cat([site.targets["test"] for site in sites.values()]).int().numpy()
    with torch.no_grad():
        predicted = (head.net(features) > 0).int().numpy()
    return label_statistics(gold, predicted)["label_macro_f1"]


def cell(
    head: Head,
    sites: Mapping[str, Site],
    judge: Site,
    row: tuple[str, dict[str, Any]],
    attack: str,
    attackers: int,
    given: argparse.Namespace,
) -> dict[str, float]:
    """Mean and interval over the seeds; each has hostile sites of its own, none where `attack` is "none"."""
    runs, count = [], 0 if attack == "none" else attackers
    for seed in range(given.seeds):
        hostile = list(np.random.default_rng(seed).permutation(sorted(sites))[:count])
        rule = made(*row, attackers)
        state = federated(head, sites, judge, rule, attack, hostile, given, seed)
        runs.append(scored(head, state, sites))
    found = over_seeds(runs, groups=[name for site in sites.values() for name in site.patients["test"]])
    low, high = found.interval or (math.nan, math.nan)
    return {"value": found.value, "low": low, "high": high}


def table(given: argparse.Namespace) -> Iterator[str]:
    """Markdown, as it is computed; every cell also goes into results.json."""
    sites = {p.name: load(p, given.out / "features", given.share) for p in hospitals()}
    judge = load(JUDGE, given.out / "features", given.share)
    head = Head(judge.features["train"].shape[1])
    results: dict[str, dict[str, float]] = {}
    rows = rule_rows(given.rules)
    tested = sum(len(site.features["test"]) for site in sites.values())
    yield (
        f"{len(sites)} sites, {tested} test studies, {given.rounds} rounds of {given.steps} mini-batches, "
        f"{given.seeds} seeds, macro F1 times 100.\n"
    )
    for attackers in given.attackers:
        columns = ["none", *given.attacks]
        yield f"**{attackers} hostile of {len(sites)}**\n"
        yield "| rule | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns)
        for name, row in rows.items():
            cells = []
            for attack in columns:
                key = f"{name}/{attack}/{attackers}"
                results[key] = cell(head, sites, judge, row, attack, attackers, given)
                cells.append(
                    "{value:.1f} [{low:.1f}, {high:.1f}]".format(
                        **{k: 100 * v for k, v in results[key].items()}
                    )
                )
            mark = "" if _guaranteed(row, attackers, len(sites)) else "*"
            yield f"| {name}{mark} | " + " | ".join(cells) + " |"
            (given.out / "results.json").write_text(json.dumps(results, indent=1))
        yield "\n\\* fewer sites than the rule's guarantee needs (`allow_unsafe`).\n"


def _guaranteed(row: tuple[str, dict[str, Any]], attackers: int, sites: int) -> bool:
    robust = made(*row, attackers).capability(ByzantineRule)
    return robust is None or sites >= robust.min_sites


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--out", type=Path, default=Path("studies/attacks"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attackers", type=lambda s: [int(x) for x in s.split(",")], default=[2])
    parser.add_argument("--attacks", type=words, default=list(ATTACKS))
    parser.add_argument("--rules", type=words, default=WITHOUT_LORA)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--share", type=float, default=1.0, help="of the patients, for a quick look")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    unknown = sorted({*given.attacks} - {*ATTACKS}) + sorted({*given.rules} - {*WITHOUT_LORA})
    if unknown:
        known = [*ATTACKS, *WITHOUT_LORA]
        raise ConfigError(f"{', '.join(unknown)}: none of {', '.join(known)}.")
    torch.set_num_threads(1)
    logging.getLogger("medflare.aggregation").setLevel(logging.ERROR)  # the tables mark what it warns of
    for line in table(given):
        print(line, flush=True)


if __name__ == "__main__":
    main()
