# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 under its three rules, its centralised and its single-site models: `make study-fedvit`.

Four synthetic hospitals with 40, 30, 20 and 10 % of the patients, as the paper deals out IU-Xray; with --real
the three publishers of cxr_multisite. Every unit (method, seed) trains in a process of its own through
`learners.loop.federate`, from the folders that fedvit_backbone.py writes. The tables are made from the
predictions alone.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medflare.data.settings.site import SiteConfig, load_site_file
from study_units import complete, run_units, timed, unit_folder

SHARES = {"site-1": 600, "site-2": 450, "site-3": 300, "site-4": 150}
"""Site -> patients: the paper's 40, 30, 20 and 10 %."""
REAL = Path(__file__).parents[1] / "jobs" / "fedmrg" / "sites" / "cxr_multisite.yaml"
SETTINGS: dict[str, Any] = {
    "optimiser": {"batch": 8, "lr": 1e-3, "warmup": 0.05},
    "decoding": {"beams": 1, "max_new_tokens": 110},
}
"""As in jobs/fedvit_gpt2; passes and rounds are options of this program."""


@dataclass(frozen=True)
class Method:
    """One row of the tables."""

    title: str
    rule: str = "fedavg"
    rule_settings: Mapping[str, Any] | None = None
    mode: str = "federated"


METHODS = {
    "fedavg": Method("FedAvg"),
    "l_fedavg_raw": Method("L-FedAvg, as printed", "l_fedavg", {"loss_weight": "raw"}),
    "l_fedavg": Method("L-FedAvg, normalised", "l_fedavg", {"loss_weight": "normalised"}),
    "l_fedavg_cross": Method("L-FedAvg, losses of all sites", "l_fedavg", {"loss_source": "cross"}),
    "krum": Method("Krum", "krum", {"f": 1, "allow_unsafe": True}),
    "krum_directions": Method("Krum, directions", "krum", {"f": 1, "allow_unsafe": True, "directions": True}),
    "centralised": Method("Centralised", mode="pooled"),
    "single": Method("Single site, each on its own tests", mode="single"),
}
DEFAULT = "fedavg,l_fedavg_raw,l_fedavg,krum,krum_directions,centralised,single"


def write_hospitals(folder: Path) -> None:
    """The four hospitals and their site.yaml; the fourth has a profile that other studies never train on."""
    from medflare.synthetic.hospitals import write_hospital
    from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL

    lines = ["sites:"]
    for profile, (site, patients) in zip((*DEMO_HOSPITALS, UNSEEN_HOSPITAL), SHARES.items(), strict=True):
        write_hospital(replace(profile, name=site), folder / site, patients)
        lines += [f"  {site}:", f"    cohort: {{format: manifest, root: {site}}}"]
    (folder / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")


def sites_of(given: argparse.Namespace) -> dict[str, SiteConfig]:
    """The sites, with the pretrained folder as their backbone."""
    found = load_site_file(REAL if given.real else given.out / "cohorts" / "site.yaml")
    backbone = {"folder": given.out / "backbone" if not given.new else None, "precision": "fp32"}
    return {
        name: site.model_copy(update={"backbone": site.backbone.model_copy(update=backbone)})
        for name, site in found.items()
        if name != "server"
    }


def train_unit(name: str, seed: int, given: argparse.Namespace) -> None:
    """Trains one unit; writes its predictions and what the rule said of every round."""
    from medflare.aggregation import make_rule
    from medflare.core.plan import RoundPlan
    from medflare.in_process.loop import federate
    from medflare.learners.vit_gpt2.learner import build
    from medflare.tasks.reports.evaluation import ScoredSite, predict

    method, sites, folder = METHODS[name], sites_of(given), unit_folder(given.out, name, seed)
    settings = SETTINGS | {"local_epochs": given.epochs}
    groups: dict[str, dict[str, SiteConfig]] = {"": sites}
    if method.mode == "single":
        groups = {site: {site: config} for site, config in sites.items()}
    elif method.mode == "pooled":
        cohort = tuple(part for site in sites.values() for part in site.cohort)
        first = next(iter(sites.values()))
        groups = {"": {"pooled": first.model_copy(update={"name": "pooled", "cohort": cohort})}}
    said: list[dict[str, Any]] = []
    for owner, members in groups.items():
        learners = {s: build(settings, c, seed, given.out / "cache" / s) for s, c in members.items()}
        rule = make_rule(method.rule, method.rule_settings or {})

        def note(number: int, state: Any, updates: Any, rule: Any = rule, owner: str = owner) -> None:
            losses = {site: update.metrics for site, update in updates.items()}
            said.append({"round": number, "owner": owner, "rule": rule.report(), "sites": losses})

        state = federate(
            learners,
            rule,
            given.rounds,
            lambda r: RoundPlan(round=r, rounds=given.rounds, seed=seed),
            on_round=note,
        )
        for site in [owner] if owner else list(sites):
            own = learners.get(site) or build(settings, sites[site], seed, given.out / "cache" / site)
            own.load_shared(state)
            tested = ScoredSite(site, "participant", "generic", folder / site, seed)
            predict(own.model, own.samples, own.samples.split_indices("test"), tested, own.settings.decoding)
    (folder / "rounds.json").write_text(json.dumps(said, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/fedvit"))
    parser.add_argument("--methods", default=DEFAULT, help=f"of {', '.join(METHODS)}")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1, help="passes over a site's images in a round")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--new", action="store_true", help="random weights instead of the pretrained folder")
    parser.add_argument("--real", action="store_true", help="cxr_multisite below MEDFLARE_DATA")
    parser.add_argument("--unit", help="method:seed; used by the program itself")
    given = parser.parse_args()
    if given.real and not os.environ.get("MEDFLARE_DATA"):
        parser.exit(2, "MEDFLARE_DATA is not set: export the folder that holds cxr_multisite/.\n")
    return given


def prepare(given: argparse.Namespace) -> None:
    """Inputs that all units share, made once."""
    if not given.real and not (given.out / "cohorts" / "site.yaml").is_file():
        write_hospitals(given.out / "cohorts")
    if not given.new and not (given.out / "backbone" / "facts.json").is_file():
        from fedvit_backbone import write_backbone

        write_backbone(given.out / "backbone")


def main() -> None:
    given = arguments()
    if given.unit:
        import torch

        torch.set_num_threads(1)
        name, seed = given.unit.split(":")
        folder = unit_folder(given.out, name, seed)
        timed(folder, lambda: train_unit(name, int(seed), given), rounds=given.rounds, epochs=given.epochs)
        return
    prepare(given)
    methods, seeds = given.methods.split(","), given.seeds.split(",")
    options = ["--rounds", str(given.rounds), "--epochs", str(given.epochs)]
    options += [f"--{flag}" for flag in ("new", "real") if getattr(given, flag)]
    run_units(__file__, given.out, [(m, s) for s in seeds for m in methods], options, given.workers)
    write_tables(given, [m for m in methods if complete(given.out, m, seeds)], seeds)


def write_tables(given: argparse.Namespace, methods: Sequence[str], seeds: Sequence[str]) -> None:
    from study_fedvit_tables import tables

    titles = {name: METHODS[name].title for name in methods}
    found = tables(given.out, titles, list(sites_of(given)), seeds)
    (given.out / "tables.md").write_text(found, encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
