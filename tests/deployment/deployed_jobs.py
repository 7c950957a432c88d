# SPDX-License-Identifier: Apache-2.0
"""Tiny jobs and tiny hospitals: the same files for a deployed federation and for the simulator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deployed
import pytest
import yaml
from deployed_programs import LONG

from medflare.core.run_record import RunRecord
from medflare.recipes import simulate
from medflare.recipes.job_check import check_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override
from medflare.synthetic import DEMO_HOSPITALS, write_hospital
from medflare.synthetic.knowledge import write_questions_demo
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital

JOBS = Path(__file__).parents[2] / "jobs"
CANARY = "zephyrine kerfuffle 4417"
"""Words that stand in every report and note of the sites and nowhere else."""
SECRET = hashlib.sha256(CANARY.encode()).hexdigest()
"""The key of the sites' sketches: the same in every run, so that no two pairs are alike by chance."""
SPLIT = {"train": 0.6, "val": 0.2, "test": 0.2}
SHORT: dict[str, Any] = {"num_rounds": 2, "steps": 2}
SMALL_LORA: dict[str, Any] = {
    **SHORT,
    "settings.lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
    "settings.optimiser.batch": 2,
    "uplink": "float32",
    "downlink": "float32",
}
FEDMRG: dict[str, Any] = {
    **SHORT,
    "settings.model.encoder": {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2},
    "settings.model.lora": {"rank": 4, "lora_alpha": 8},
    "settings.batch": 4,
    "settings.max_report_tokens": 30,
    "settings.decoding": {"beams": 1, "max_new_tokens": 8, "min_new_tokens": 0},
    "settings.eval_limit": 2,
    "final_limit": 2,
}
FED_MEDLORA = {**SMALL_LORA, "settings.eval_limit": 0, "settings.max_tokens": 480, "final_limit": 1}
DDCS_QA = {
    **SMALL_LORA,
    "settings.eval_limit": 2,
    "rule_settings.period": 1,
    "seed": 2,  # different hospitals are drawn in both rounds, so that what is seen of them can count
    "worker": "thread",
    "final_limit": 2,
}
SMALL = {"fedmrg": FEDMRG, "fed_medlora": FED_MEDLORA, "ddcs_qa": DDCS_QA}


def tiny_job(folder: Path, name: str, clients: int = 3, **changes: Any) -> Path:
    """One of the repository's jobs, made small, below `folder`; two underscores in a key stand for a dot."""
    wanted = {**SMALL[name], **{key.replace("__", "."): value for key, value in changes.items()}}
    if wanted.get("evaluate_every") == 0:
        del wanted["settings.eval_limit"]  # which has no effect then
    job = replace(override(read_job(JOBS / name), wanted), n_clients=clients)
    check_job(job)
    return job.write(folder / job.title)


@dataclass(frozen=True)
class Simulated:
    """A job in the simulator: its record, and the folder of the server's run."""

    record: RunRecord
    folder: Path


def simulated(name: str, workspace: Path, sites: Sequence[str], site_file: Path) -> Simulated:
    """The job that `tiny_job` writes, in the simulator, on a machine without Java like the federation's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", deployed.bare_path(workspace.parent / "bin"))
        # An admin's job is as it was written; the simulator would choose a preset for the sites' backbone.
        changes = {"preset": "job", **SMALL[name]}
        record = simulate.run_simulator(
            JOBS / name, workspace, sites, site_file, changes=changes, timeout=LONG
        )
    return Simulated(record, workspace / simulate.SERVER_FOLDER)


def write_cohorts(folder: Path, sites: tuple[str, ...]) -> None:
    """A hospital of radiographs and one of notes for each site, every text with the canary's words in it."""
    for site, images, notes in zip(sites, DEMO_HOSPITALS, NOTE_HOSPITALS, strict=True):
        write_hospital(images, folder / site / "studies", 20, size=64)
        manifest = folder / site / "studies" / "manifest.jsonl"
        rows = [json.loads(line) for line in manifest.read_text().splitlines()]
        manifest.write_text("".join(json.dumps(marked(row, "report")) + "\n" for row in rows))
        write_notes_hospital(notes, folder / site / "notes", 10, "jsonl")
        file = folder / site / "notes" / "notes.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(marked(row, "text")) + "\n" for row in rows))


def marked(row: dict[str, Any], key: str) -> dict[str, Any]:
    """A row whose text ends with the canary's words."""
    return {**row, key: f"{row[key]} {CANARY.capitalize()}."}


def site_document(cohorts: Path, site: str, backbone: Path) -> dict[str, Any]:
    """What a site writes into its local/site.yaml."""
    home = cohorts / site
    return {
        "cohort": [
            {"format": "manifest", "root": str(home / "studies")},
            {"format": "notes_jsonl", "root": str(home / "notes"), "split": SPLIT},
        ],
        "backbone": {"folder": str(backbone), "precision": "fp32"},
        "device": "cpu",
    }


def write_site_files(kits: Path, cohorts: Path, sites: tuple[str, ...], backbone: Path) -> Path:
    """Every site's own local/site.yaml, and one file of all sites for the simulator, which is returned."""
    blocks = {site: site_document(cohorts, site, backbone) for site in sites}
    for site, block in blocks.items():
        (kits / site / "local" / "site.yaml").write_text(yaml.safe_dump(block))
    path = cohorts / "site.yaml"
    path.write_text(yaml.safe_dump({"sites": blocks}))
    return path


def write_questions(folder: Path, sites: Sequence[str], denies: str) -> Path:
    """Hospitals of questions under one key, of which `denies` tells nothing of its graph; their site.yaml."""
    write_questions_demo(folder, len(sites), "iid", seed=5, questions=24, diseases=3, groups=3)
    path = folder / "site.yaml"
    document = yaml.safe_load(path.read_text())
    for site, block in document["sites"].items():
        block["policy"] = {"knowledge_sketch": "deny"} if site == denies else {"knowledge_exact": "allow"}
        (folder / block["knowledge"]["key"]).write_text(SECRET)
    path.write_text(yaml.safe_dump(document))
    return path


def hand_over_questions(folder: Path, local: Path, site: str) -> None:
    """A hospital's block of `write_questions` into its kit's `local/`, with vocabulary and key beside it."""
    block = yaml.safe_load((folder / "site.yaml").read_text())["sites"][site]
    block["cohort"]["root"] = str(folder / site)
    (local / "site.yaml").write_text(yaml.safe_dump(block))
    for name in (block["knowledge"]["key"], *block["knowledge"]["vocabulary"]):
        (local / name).write_bytes((folder / name).read_bytes())
