# SPDX-License-Identifier: Apache-2.0
"""Hospitals of the FedTAR comparison, and the state that all of its methods begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from medflare.core.config import Settings
from medflare.data.settings.site import SiteConfig, load_site_file

REAL_SITES = Path(__file__).parents[2] / "jobs" / "fedtar" / "sites" / "cxr_multisite.yaml"
REAL_VISITS = 2
"""T of the real hospitals, of whose patients few came more than twice."""
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LEARNER: dict[str, Any] = {
    "model": {
        "encoder": {"name": "small", "weights": "embedded", "image_size": 96, "token_grid": 4},
        "lora": {"rank": 16, "lora_alpha": 32, "targets": ATTENTION},
    },
    "patient": {"rank": 4, "lora_alpha": 8, "targets": ["q_proj", "v_proj"]},
    "batch": 8,
    "decoding": {"beams": 1, "max_new_tokens": 110, "min_new_tokens": 0, "repetition_penalty": 1.0},
    "eval_batch": 64,
}
"""As in jobs/fedtar, but that no method says which visit is the first unless its row does."""
PLAIN = {"variant": "pooled_baseline"}
TEACHING_HOSPITALS, TEACHING_LR, TEACHING_BATCH = 6, 3e-3, 16


class VisitsSettings(Settings):
    """Hospitals and budget, equal for all methods.

    Attributes:
        visits: T. rounds: of T exchanges. passes: over a site's visits in a round.
        training: patients of each hospital that train; validation and tested: further ones of each hospital.
        lr, warmup: of every site's optimiser, whose moments outlive an exchange (TAR-19).
        taught: patients of each teaching hospital, one visit each; teaching_steps: of the common start.
    """

    visits: int = Field(default=4, ge=1)
    rounds: int = Field(default=10, ge=1)
    passes: float = Field(default=0.5, gt=0)
    training: tuple[int, ...] = Field(default=(400, 280, 175), min_length=2, max_length=3)
    validation: int = Field(default=30, ge=1)
    tested: int = Field(default=200, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    warmup: float = Field(default=0.05, ge=0, lt=1)
    taught: int = Field(default=300, ge=1)
    teaching_steps: int = Field(default=500, ge=1)


def visits_of(settings: VisitsSettings, partition: str) -> int:
    """Return T of a partition."""
    return REAL_VISITS if partition == "real" else settings.visits


def write_hospitals(settings: VisitsSettings, folder: Path) -> None:
    """Write the hospitals and their site.yaml, unless they are there; site-3 does not have the last visit."""
    from medflare.synthetic import DEMO_HOSPITALS
    from medflare.synthetic.follow_up import write_follow_up

    if (folder / "site.yaml").is_file():
        return
    lines = ["sites:"]
    for number, (profile, training) in enumerate(zip(DEMO_HOSPITALS, settings.training, strict=False), 1):
        site, patients = f"site-{number}", training + settings.validation + settings.tested
        parts = {"train": training, "val": settings.validation, "test": settings.tested}
        split = ", ".join(f"{name}: {count / patients:.6f}" for name, count in parts.items())
        write_follow_up(profile, folder / site, patients, settings.visits)
        lines += [
            f"  {site}:",
            "    cohort:",
            f"      {{format: manifest, root: {site}, visits: {{order: visit, most: {settings.visits}}},",
            f"       columns: {{split: null}}, split: {{{split}}}}}",
        ]
    (folder / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_sites(settings: VisitsSettings, partition: str, shared: Path) -> dict[str, SiteConfig]:
    """Return the sites that train."""
    found = load_site_file(REAL_SITES if partition == "real" else shared / "cohorts" / "site.yaml")
    return {name: site for name, site in found.items() if name != "server"}


OWN_STARTS = {"prior_context": "_prior", "visit_context": "_visit"}
"""Setting that tells the model of the visit before -> how the file of its start ends."""


def start_file(shared: Path, own: Mapping[str, Any]) -> Path:
    """Return where the common start stands; methods that are told of the visit before were taught with it."""
    told = next((end for name, end in OWN_STARTS.items() if own.get(name)), "")
    return shared / f"start{told}.safetensors"


def write_start(settings: VisitsSettings, own: Sequence[str], shared: Path) -> None:
    """Write bridge and client adapter after a central training on single visits of other hospitals.

    Args:
        own: names of settings that are on, of those that change the start (`OWN_STARTS`).
    """
    from safetensors.torch import save_file

    from medflare.core.plan import RoundPlan
    from medflare.learners.fedtar.learner import build

    changes = dict.fromkeys(own, True)
    path = start_file(shared, changes)
    if path.is_file():
        return
    site = load_site_file(_teaching(settings, shared / "teaching"))["teaching"]
    learner = build(
        LEARNER | PLAIN | changes | {"batch": TEACHING_BATCH, "lr": TEACHING_LR, "warmup": 0.05, "visits": 1},
        site,
        0,
        shared / "cache" / "teaching",
    )
    learner.load_shared(learner.initial_shared())
    learner.fit(RoundPlan(round=0, rounds=1, steps=settings.teaching_steps))
    save_file(learner.initial_shared(), path)


def _teaching(settings: VisitsSettings, folder: Path) -> Path:
    """Write hospitals of mixed house styles as one site, whose patients are none of the comparison's."""
    from medflare.synthetic import pretraining_hospitals
    from medflare.synthetic.follow_up import write_follow_up

    path = folder / "site.yaml"
    if path.is_file():
        return path
    lines = ["sites:", "  teaching:", "    cohort:"]
    for profile in pretraining_hospitals(TEACHING_HOSPITALS):
        write_follow_up(profile, folder / profile.name, settings.taught, 1)
        lines += [f"      - {{format: manifest, root: {profile.name}, visits: {{order: visit, most: 1}}}}"]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path
