# SPDX-License-Identifier: Apache-2.0
"""A made-up run on disk: three sites and an unseen one, six rounds, an absence, predictions with images."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from medflare.core.conditions import CONDITIONS
from medflare.core.json_lines import write_lines
from medflare.core.run_record import RoundRecord, RunRecord, SiteRecord, Traffic
from medflare.evaluation.label_metrics import condition_statistics, label_statistics
from medflare.evaluation.predictions import Prediction, compare_predictions
from medflare.evaluation.report_metrics import Evaluation, report_statistics
from medflare.evaluation.statistics import bootstrap
from medflare.tasks.prediction_files import relative_image
from record_builders import evaluation

SITES = ("site-1", "site-2", "site-3")
SENTENCES = {
    1: "The heart is enlarged.",
    5: "There is a focal consolidation in the right lower lobe.",
    8: "A small left apical pneumothorax is seen.",
    9: "There is a moderate right pleural effusion.",
    12: "A right central venous catheter ends in the superior vena cava.",
}
FINE = "The lungs are clear. The heart is of normal size."


def write_report(findings: list[int]) -> str:
    return " ".join(SENTENCES[i] for i in findings) or FINE


def codes_of(findings: list[int]) -> tuple[int, ...]:
    return tuple(int(i in findings or (i == 13 and not findings)) for i in range(14))


def draw(path: Path, seed: int) -> Path:
    """A grey picture that is not constant."""
    rng = np.random.default_rng(seed)
    across = np.linspace(-1, 1, 64)
    shade = 200 * np.exp(-((across[:, None] ** 2) + (np.abs(across[None, :]) - 0.45) ** 2) * 4)
    Image.fromarray((shade + rng.integers(40, size=(64, 64))).astype(np.uint8)).save(path)
    return path


def invent_studies(folder: Path, site: str, adapter: str, skill: float, count: int = 24) -> list[Prediction]:
    """Studies whose generated report keeps each finding with probability `skill`."""
    rng, said = random.Random(site), random.Random(f"{site} {adapter}")
    found = []
    for i in range(count):
        gold = sorted(rng.sample(list(SENTENCES), rng.choice([0, 1, 1, 2, 3])))
        kept = [f for f in gold if said.random() < skill]
        kept += [f for f in SENTENCES if f not in gold and said.random() < 0.08]
        image = draw(folder / f"{site}-{i}.png", i) if i != 3 else folder / "lost.png"
        found.append(
            Prediction(
                study_id=f"{site}-s{i:03d}",
                patient_id=f"p{i // 2}",
                site=site,
                adapter=adapter,
                reference=write_report(gold),
                generated=write_report(sorted(kept)),
                gold_codes=codes_of(gold),
                predicted_codes=codes_of(kept),
                image=relative_image(image, folder / "any.jsonl"),
            )
        )
    return found


def score(items: list[Prediction]) -> Evaluation:
    statistics = report_statistics([p.reference for p in items], [p.generated for p in items])
    gold, predicted = [p.gold_codes for p in items], [p.predicted_codes for p in items]
    statistics |= label_statistics(gold, predicted) | condition_statistics(gold, predicted)
    return Evaluation(bootstrap(statistics), {"meteor": "skipped: METEOR needs Java"}, statistics)


def invent_rounds(rounds: int) -> list[RoundRecord]:
    found = []
    for r in range(rounds):
        gone = {"site-2": "no update within 600 s"} if r == 2 else {}
        metrics = {
            site: {
                "train_loss": 2.2 * math.exp(-0.4 * r) + 0.2 * k,
                "train_loss_hcl": 1.5 - 1.1 * r - 0.3 * k,
                "val_label_f1": 0.8 * (1 - math.exp(-0.5 * (r + 1))) - 0.05 * k,
                "val_bleu_4": 0.4 * (1 - math.exp(-0.4 * (r + 1))) - 0.03 * k,
                "train_seconds": 12.0,
            }
            for k, site in enumerate(SITES)
            if site not in gone
        }
        mean = {n: sum(m[n] for m in metrics.values()) / len(metrics) for n in metrics["site-1"]}
        traffic = {
            s: Traffic(sent=0 if s in gone else 1_113_088 + 412, received=1_113_088 + 380) for s in SITES
        }
        accepted = {s: 700 + 100 * k for k, s in enumerate(SITES) if s not in gone}
        found.append(
            RoundRecord(
                round=r,
                seconds=61.5,
                accepted=accepted,
                absent=gone,
                metrics=metrics,
                mean=mean,
                traffic=traffic,
            )
        )
    return found


def invent_run(folder: Path, rounds: int = 6) -> Path:
    """Writes run.json, predictions and images into `folder`; returns the folder."""
    record = RunRecord(
        job="fedmrg",
        method="FedMRG",
        task="reports",
        run_id="2026-11-20-a",
        status="completed",
        started="2026-11-20T09:14:05Z",
        seconds=437.2,
        configuration={"rounds": rounds, "settings": {"tau": 0.07, "gamma_mix": 0.5}},
        versions={"medflare": "0.1.0", "nvflare": "2.9.0", "torch": "2.15.0"},
        parameters={"encoder": 240_112, "projection": 66_048, "adapter": 250_384},
        expected_bytes_per_direction=1_113_088,
        paper={"parameters": {"trunk": 42_500_160, "projection": 8_392_704, "adapter": 8_388_608}},
        rounds=invent_rounds(rounds),
        best_round=4,
        best_metric="val_label_f1",
        artefacts={"adapter (PEFT)": "adapter", "page": "page.html"},
    )
    for k, site in enumerate(SITES):
        shares = {c: round(0.05 + 0.4 * abs(math.sin(i * 1.7 + k)), 3) for i, c in enumerate(CONDITIONS)}
        record.sites[site] = SiteRecord(
            backbone="embedded decoder",
            fingerprint="sha256:9f2c" + "0" * 28,
            examples={"train": 700 + 100 * k, "val": 80, "test": 24},
            skipped={"corrupt image": 2} if k == 1 else {},
            heterogeneity={"labels": shares, "words": 31.5 + 6 * k, "vocabulary": 210 + k},
        )
    folder.mkdir(parents=True, exist_ok=True)
    for k, site in enumerate((*SITES, "site-4")):
        scored: dict[str, list[Prediction]] = {}
        for adapter in ("generic", "personalised") if site in SITES else ("generic",):
            items = invent_studies(folder, site, adapter, 0.85 - 0.1 * k + 0.1 * (adapter == "personalised"))
            path = write_lines(folder / f"predictions_{site}_{adapter}.jsonl", items)
            scored[adapter], scores = items, score(items)
            facts = {"skipped_metrics": scores.skipped, "predictions": path.name}
            role = "participant" if site in SITES else "unseen"
            record.evaluations.append(
                evaluation(site, adapter, len(items), scores.estimates, role=role, **facts)
            )
        if len(scored) == 2:
            names = ("FedMRG personalised", "FedMRG generic")
            sides = scored["personalised"], scored["generic"]
            record.comparisons += compare_predictions(
                names, *sides, site=site, metrics=["bleu_4", "label_f1"]
            )
    record.write(folder / "run.json")
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return invent_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    return lambda **changes: invent_run(tmp_path / "run", **changes)
