# SPDX-License-Identifier: Apache-2.0
"""The comparison of report generators: units with their image-swap control, and benchmark run's bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from medflare.cli.main import app
from medflare.core.errors import ConfigError
from medflare.learners.registry import METHODS
from method_comparison.configuration import Selection, read_configuration
from method_comparison.published import IU, MILLIONS, MIMIC, published_tables
from method_comparison.runner import Comparison


def test_every_row_names_a_method_of_the_package_with_settings_it_has() -> None:
    configuration = read_configuration("report_generators")
    comparison = Comparison.of("report_generators", configuration)
    for row in comparison.own.values():
        METHODS[row.learner].resolve(row.settings)  # type: ignore[attr-defined]
    assert {"transformer", "r2gen", "wcl", "r2gengpt", "promptmrg", "fed_lora", "fedmrg"} <= set(
        comparison.own
    )


def test_published_rows_have_every_metric_and_a_size() -> None:
    for table in (*MIMIC.values(), *IU.values()):
        assert all(len(values) == 8 for values in table.values())
        assert set(table) <= set(MILLIONS)
    shown = [table[2:] for table in published_tables(["fedmrg", "own"], "cluster")]
    assert shown == [
        ["| fedmrg | 59 M | 40.19 | 25.52 | 17.55 | 12.68 | 27.55 | 33.9 | 30.2 | 45.4 |"],
        ["| fedmrg | 59 M | 43.55 | 26.38 | 17.3 | 11.95 | 29.73 | 19.69 | 17.22 | 17.86 |"],
    ]
    assert published_tables(["own"], "cluster") == []
    assert set(MIMIC["cluster"]) == set(IU["cluster"]) == set(IU["random"]) == set(MILLIONS)


def test_a_benchmark_that_is_not_named_is_asked_for(tmp_path: Path) -> None:
    configuration = read_configuration("report_generators").model_copy(update={"partitions": ("benchmark",)})
    comparison = Comparison.of("fl", configuration, Selection(methods=("transformer",), seeds=(0,)))
    with pytest.raises(ConfigError, match=r"name the folder of `medflare benchmark fl-mrg`"):
        comparison.task.prepare(comparison.settings, "benchmark", 0, tmp_path)
    result = CliRunner().invoke(app, ["benchmark", "run", str(tmp_path / "nothing.yaml")])
    assert result.exit_code == 2
    assert "reproduce-the-papers.md has one" in " ".join(result.output.split())
