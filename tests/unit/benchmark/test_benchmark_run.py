# SPDX-License-Identifier: Apache-2.0
"""From downloads to tables: synthetic hospitals in MIMIC-CXR's layout, a partition, trained methods."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from synthetic_downloads import write_synthetic_iu, write_synthetic_mimic
from typer.testing import CliRunner

from medflare.cli.main import app

TINY = {
    "encoder": {"name": "small", "weights": "none", "image_size": 32},
    **{"width": 16, "layers": 1, "attention_heads": 2, "feed_forward": 32},
}


def test_a_partition_of_a_download_is_trained_and_stands_beside_the_published_figures(tmp_path: Path) -> None:
    mimic = write_synthetic_mimic(tmp_path / "mimic-cxr-jpg", 16, 32)
    iu = write_synthetic_iu(tmp_path / "iu_xray", 5, 32)
    roots = ["--mimic-cxr", str(mimic), "--iu-xray", str(iu), "--setting", "cluster", "--clients", "2"]
    bench, runner = tmp_path / "bench", CliRunner()
    result = runner.invoke(app, ["benchmark", "fl-mrg", str(bench), *roots])
    assert result.exit_code == 0, result.output
    comparison = {
        "schema_version": 1,
        "task": "report_generators",
        "title": "FL-MRG",
        "about": "A test.",
        "partitions": ["benchmark"],
        "seeds": [0],
        "reference": "transformer",
        "settings": {
            **{"benchmark": str(bench), "setting": "cluster", "rounds": 1, "steps": 1},
            **{"tested": 4, "max_new_tokens": 6},
        },
        "methods": {
            name: {"title": name, "settings": {"learner": name, "settings": {"model": shape}}}
            for name, shape in (("transformer", TINY), ("r2gen", TINY | {"memory": "relational"}))
        },
    }
    file = tmp_path / "fl_mrg.yaml"
    file.write_text(yaml.safe_dump(comparison))
    result = runner.invoke(app, ["benchmark", "run", str(file), "--out", str(tmp_path / "studies")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "studies/pages/fl_mrg.md").read_text()
    head = next(line for line in page.splitlines() if "BLEU-1" in line and "published" not in line)
    assert all(
        column in head for column in ("CE recall", "CE precision", "unseen: CE recall", "images swapped")
    )
    assert "| transformer | 63 M | 27.05 | 17 | 11.43 |" in page
    assert "published (unseen: IU X-Ray, cluster)" in page
    unit = json.loads((tmp_path / "studies/fl_mrg/benchmark/r2gen/0/result.json").read_text())
    assert {"label_recall", "unseen_label_precision", "swapped_f1", "millions"} <= set(unit["values"])
    again = runner.invoke(app, ["benchmark", "run", str(file), "--out", str(tmp_path / "studies")])
    assert again.exit_code == 0
    assert "seed 0:" not in again.output, "finished units stay"
