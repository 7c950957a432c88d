# SPDX-License-Identifier: Apache-2.0
"""The repository's jobs made small, with hospitals for them, through FLARE's simulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from medflare.core.run_record import RunRecord
from medflare.recipes import simulate
from medflare.recipes.resume import WorkspaceState
from medflare.recipes.simulator_process import SERVER_FOLDER
from medflare.synthetic import DEMO_HOSPITALS, UNSEEN_HOSPITAL
from medflare.synthetic.follow_up import write_follow_up
from medflare.synthetic.knowledge import write_questions_demo
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from medflare.synthetic.notes.files import write_validation_notes
from medflare.tasks.extraction.extractor import load_extractor
from medflare.tasks.prediction_files import read_answers, read_documents, read_predictions
from medflare.tasks.questions.answerer import load_answerer
from medflare.worker.fork_server import usable

JOBS = Path(__file__).parents[2] / "jobs"
ROUNDS, STEPS, VISITS = 2, 2, 3
SPLIT = {"train": 0.5, "val": 0.25, "test": 0.25}
TEXT: dict[str, Any] = {
    "settings.lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
    "settings.optimiser.batch": 2,
    "steps": STEPS,
    "uplink": "float32",
    "downlink": "float32",
    "worker": "process",
}
MIXTURE = {"components": 3, "least_patients": 2, "iterations": 2}
FEDTAR: dict[str, Any] = {
    "visits": VISITS,
    "settings.visits": VISITS,
    "rule_settings.visits": VISITS,
    "mixture": MIXTURE,
    "settings.mixture": MIXTURE,
    "settings.model.encoder": {"name": "small", "weights": "none", "image_size": 32, "token_grid": 2},
    "settings.model.lora": {"rank": 2, "lora_alpha": 4, "targets": ["q_proj", "v_proj"]},
    "settings.patient": {"width": 4, "rank": 2, "lora_alpha": 4, "targets": ["q_proj"]},
    "settings.batch": 2,
    "settings.max_report_tokens": 24,
    "settings.decoding.max_new_tokens": 8,
    "settings.eval_limit": 0,
    "final_limit": 1,
    "steps": 1,
    "worker": "process",
}


def write_site_file(folder: Path, sites: Iterable[str], cohort: dict[str, Any]) -> None:
    """One site.yaml of all sites, whose cohorts lie in folders of their names."""
    blocks = {
        site: {"cohort": {"root": site, **cohort}, "backbone": {"precision": "fp32"}, "device": "cpu"}
        for site in sites
    }
    (folder / "site.yaml").write_text(yaml.safe_dump({"sites": blocks}))


def write_notes(folder: Path) -> None:
    """Two sites, the server's validation notes, and a hospital that takes no part."""
    names = ("site-1", "site-2", "site-3")
    for name, hospital in zip(names, NOTE_HOSPITALS, strict=True):
        write_notes_hospital(hospital, folder / name, 4, "jsonl")
    write_validation_notes(folder / "server", count=1)
    cohort = {"format": "notes_jsonl", "split": SPLIT}
    write_site_file(folder, (*names, "server"), cohort)


def write_questions(folder: Path) -> None:
    """Three sites, and a hospital that takes no part."""
    write_questions_demo(folder, 4, questions=12, diseases=2, groups=3)


def write_visits(folder: Path) -> None:
    """Three sites, nobody at the second has a second visit, and a hospital that takes no part."""
    names = ("site-1", "site-2", "site-3", "site-4")
    for name, hospital in zip(names, (*DEMO_HOSPITALS, UNSEEN_HOSPITAL), strict=True):
        manifest = write_follow_up(hospital, folder / name, 12, VISITS, size=32)
        rows = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [row for row in rows if name != "site-2" or json.loads(row)["visit"] != 2]
        manifest.write_text("".join(kept), encoding="utf-8")
    cohort = {"format": "manifest", "visits": {"order": "visit"}, "columns": {"split": None}, "split": SPLIT}
    write_site_file(folder, names, cohort)


@dataclass(frozen=True)
class SmallJob:
    """A job, what makes it small, and what must come out.

    Attributes:
        write: writes cohorts and site.yaml. sites: who takes part. unseen: a hospital that does not.
        read: predictions of a site. metrics: among those of every evaluation.
        load: opens the result; None where a test of the method does.
    """

    name: str
    changes: dict[str, Any]
    write: Callable[[Path], None]
    sites: tuple[str, ...]
    unseen: str
    read: Callable[[Path], Any]
    metrics: set[str]
    load: Callable[..., Any] | None = None


SMALL = {
    job.name: job
    for job in (
        SmallJob(
            "fed_medlora_plus",
            TEXT
            | {"settings.lora": TEXT["settings.lora"] | {"dropout": 0.1}}
            | {"settings.eval_limit": 0, "final_limit": 1, "scorer": "process"},
            write_notes,
            ("site-1", "site-2"),
            "site-3",
            read_documents,
            {"ner_strict_f1", "re_gold_strict_f1", "parse_failure_rate"},
            load_extractor,
        ),
        SmallJob(
            "token_classification",
            {"settings.encoder": {"layers": 1, "width": 16}, "steps": STEPS, "worker": "thread"}
            | {"settings.eval_limit": 0, "final_limit": 1},
            write_notes,
            ("site-1", "site-2"),
            "site-3",
            read_documents,
            {"ner_strict_f1", "re_gold_strict_f1", "parse_failure_rate"},
        ),
        SmallJob(
            "ddcs_qa",
            TEXT | {"settings.eval_limit": 2, "final_limit": 2},
            write_questions,
            ("site-1", "site-2", "site-3"),
            "site-4",
            read_answers,
            {"accuracy", "chance", "margin"},
            load_answerer,
        ),
        SmallJob(
            "fedtar",
            FEDTAR,
            write_visits,
            ("site-1", "site-2", "site-3"),
            "site-4",
            read_predictions,
            {"bleu_4", "label_f1", "visits/rouge_l"},
        ),
    )
}


@dataclass
class Finished:
    """A run of a small job: the server's folder, the sites' file and the record."""

    job: SmallJob
    folder: Path
    site_file: Path
    record: RunRecord

    @property
    def state(self) -> Path:
        """The folder of the server's states, which lies outside the workspace."""
        return WorkspaceState(self.folder.parents[1]).run / "state"


@dataclass
class Runs:
    """Runs of small jobs in the simulator, made when first asked for."""

    make_folder: Callable[[str], Path]
    made: dict[str, Finished] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Finished:
        if name not in self.made:
            job, folder = SMALL[name], self.make_folder(name)
            job.write(folder)
            # FLARE by itself splits the path of a workspace at spaces and quotes
            file, workspace = folder / "site.yaml", folder / ("nora's run" if usable() else "ws")
            record = simulate.run_simulator(
                JOBS / name,
                workspace,
                sites=job.sites,
                site_file=file,
                rounds=ROUNDS,
                changes=job.changes,
                timeout=900,
            )
            self.made[name] = Finished(job, workspace / SERVER_FOLDER, file, record)
        return self.made[name]
