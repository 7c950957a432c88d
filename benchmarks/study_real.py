# SPDX-License-Identifier: Apache-2.0
"""FedMRG and Fed-LoRA through FLARE on real chest X-rays of three publishers: `make study-real`.

MEDFLARE_DATA names the folder that holds cxr_multisite/ (docs/results/real_xrays.md). Prints the table.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from medflare.recipes.simulate import run_simulator
from medflare.recipes.simulator_process import SERVER_FOLDER
from medflare.reporting.page import write_page
from medflare.reporting.score_rows import rows_of
from medflare.reporting.tables import markdown_table

JOB = Path(__file__).parents[1] / "jobs" / "fedmrg"
SITES = JOB / "sites" / "cxr_multisite.yaml"
METRICS = ("bleu_1", "bleu_4", "rouge_l", "cider", "label_f1", "label_micro_f1")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/real"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    if not os.environ.get("MEDFLARE_DATA"):
        parser.exit(2, "MEDFLARE_DATA is not set: export the folder that holds cxr_multisite/.\n")
    records = []
    for title, variant in (("FedMRG", "fedmrg"), ("Fed-LoRA", "fed_lora")):
        workspace = (given.out / variant).resolve()
        changes = {"settings.variant": variant, "steps": given.steps, "settings.max_report_tokens": 100}
        record = run_simulator(
            JOB, workspace, site_file=SITES, rounds=given.rounds, changes=changes, overwrite=True
        )
        write_page(workspace / SERVER_FOLDER)
        records.append(record.model_copy(update={"method": title}))
    table = markdown_table(rows_of(records), METRICS)
    (given.out / "tables.md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
