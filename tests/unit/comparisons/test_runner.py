# SPDX-License-Identifier: Apache-2.0
"""Comparisons: strict configurations, results that count once, clean continuation, and the page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.evaluation.statistics import mean_statistic
from method_comparison import runner
from method_comparison.__main__ import main
from method_comparison.comparison_table import Run
from method_comparison.configuration import Selection, names, read_configuration
from method_comparison.markdown_table import Column
from method_comparison.page import write_page
from method_comparison.result import FILE, Measured, ResultStore
from method_comparison.runner import Comparison, NotTrained, run_units
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.needed import NotHereError, added_model, public_data
from method_comparison.time_to_target import median, restricted_mean, time_to_target


class ToySettings(Settings):
    steps: int = 3


class ToyMethod(Settings):
    gain: float = 0.0
    fails: bool = False
    needs: str = ""


class Toy(ComparisonTask[ToySettings, ToyMethod]):
    name = "toy"
    settings, method_settings = ToySettings, ToyMethod
    columns = {"score": Column(title="score")}  # noqa: RUF012
    case_columns = {"f1": Column(title="F1")}  # noqa: RUF012
    targets = {"half": "50 %"}  # noqa: RUF012
    trained: list[tuple[str, int]] = []  # noqa: RUF012

    def prepare(self, settings: ToySettings, partition: str, seed: int, shared: Path) -> None:
        (shared / f"{partition}-{seed}").touch()

    def train(self, unit: Unit[ToySettings, ToyMethod]) -> Measured:
        assert (unit.shared / f"{unit.partition}-{unit.seed}").is_file()
        (unit.folder / "predictions").write_text(f"{unit.own.gain}")
        if unit.own.fails:
            raise RuntimeError("no convergence")
        if unit.own.needs:
            public_data(unit.own.needs)
        Toy.trained.append((unit.method, unit.seed))
        score = 0.4 + unit.own.gain + 0.001 * unit.seed
        return Measured(
            values={"score": score},
            times={"half": time_to_target([(10.0, 0.0), (20.0, score)], 0.5, 60.0)},
            curves={"score": [(0.0, 0.0), (60.0, score)]},
            bytes=1_000_000,
        )

    def places(self, settings: ToySettings, partition: str, folder: Path) -> dict[str, Run]:
        if not (folder / "predictions").is_file():
            return {}
        gain = float((folder / "predictions").read_text())
        return {"all sites": Run({"f1": mean_statistic([gain] * 4 + [1.0] * 4)}, list("aabbccdd"))}


GIVEN: dict[str, Any] = {
    "schema_version": 1,
    "task": "toy",
    "title": "A toy",
    "seeds": [0, 1, 2, 3, 4],
    "reference": "plain",
    "settings": {"steps": 2},
    "methods": {
        "plain": {"title": "Plain"},
        "better": {"title": "Better", "settings": {"gain": 0.2}},
        "rare": {"title": "Rare"},
    },
    "on_request": ["rare"],
    "small": {"methods": ["plain"], "seeds": [1], "settings": {"steps": 1}},
}


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Toy.trained.clear()
    monkeypatch.setattr(runner, "make_task", lambda name: Toy())
    monkeypatch.setattr(runner, "read_configuration", lambda name: read_configuration(name, tmp_path))
    monkeypatch.setattr("method_comparison.plots.POINTS", 3)
    write(tmp_path, GIVEN)


def write(folder: Path, data: dict[str, Any], name: str = "toy") -> None:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(data, sort_keys=False))


def changed(**more: Any) -> dict[str, Any]:
    return {**GIVEN, **more}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (changed(sede=[1]), "sede: no such setting. Did you mean 'seeds'?"),
        (changed(schema_version=2), "schema_version is 2; this program reads 1"),
        (changed(seeds=[0, 3, 3]), "seeds: 3 stands there twice"),
        (changed(seeds=[]), "at least 1 item"),
        (changed(reference="ours"), "there is no ours; there are plain, better, rare"),
        (changed(partitions=["../x"]), "should match pattern"),
        (changed(small={"methods": ["none"]}), "there is no none"),
        (changed(settings={"epochs": 1}), "epochs: no such setting. Valid here: steps."),
        (
            changed(methods={"plain": {"title": "P", "settings": {"gian": 1}}}, small={}, on_request=[]),
            "gian",
        ),
        (changed(partitions=["iid"]), "there is no iid; there are all"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_before_anything_trains(
    data: dict[str, Any], said: str, tmp_path: Path
) -> None:
    write(tmp_path, data)
    with pytest.raises(ConfigError, match=said.replace(".", r"\.").replace("?", r"\?")):
        Comparison.read("toy")


def test_a_seed_asked_for_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seeds: 1 stands there twice"):
        Comparison.read("toy", Selection(seeds=(1, 1)))


def test_units_train_once_and_the_next_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_units(Comparison.read("toy", Selection(seeds=(0,))), out) == NotTrained()
    assert Toy.trained == [("plain", 0), ("better", 0)]
    assert run_units(Comparison.read("toy", Selection(seeds=(0, 1))), out) == NotTrained()
    assert Toy.trained[2:] == [("plain", 1), ("better", 1)]
    assert sorted(path.name for path in (out / "toy/all/plain").iterdir()) == ["0", "0.lock", "1", "1.lock"]


def test_what_an_interrupted_unit_left_is_thrown_away(tmp_path: Path) -> None:
    out, comparison = tmp_path / "out", Comparison.read("toy", Selection(seeds=(0,)))
    left = ResultStore(out, "toy").unit_folder("all", "plain", 0).with_name("0.partial")
    left.mkdir(parents=True)
    (left / "half a file").touch()
    run_units(comparison, out)
    assert sorted(path.name for path in (out / "toy/all/plain").iterdir()) == ["0", "0.lock"]
    assert sorted(path.name for path in (out / "toy/all/plain/0").iterdir()) == ["predictions", FILE]


def test_a_unit_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    write(
        tmp_path, changed(methods={**GIVEN["methods"], "plain": {"title": "P", "settings": {"fails": True}}})
    )
    comparison, lines = Comparison.read("toy", Selection(seeds=(0,))), list[str]()
    not_trained = run_units(comparison, tmp_path / "out", say=lines.append)
    assert not_trained == NotTrained(failed=["all plain seed 0"], left_out=[])
    assert Toy.trained == [("better", 0)]
    assert "no convergence" in lines[0]
    assert "RuntimeError" in (tmp_path / "out/toy/all/plain/0.partial/error.txt").read_text()


def needing(folder: Path, name: str) -> dict[str, Any]:
    plain = {"title": "P", "settings": {"needs": name}}
    given = changed(methods={**GIVEN["methods"], "plain": plain})
    write(folder, given)
    return given


def test_a_unit_whose_data_are_not_here_is_left_out_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needing(tmp_path, "ie/notes")
    monkeypatch.delenv("MEDFLARE_DATA", raising=False)
    comparison, lines = Comparison.read("toy", Selection(seeds=(0,))), list[str]()
    not_trained = run_units(comparison, tmp_path / "out", say=lines.append)
    assert not_trained == NotTrained(failed=[], left_out=["all plain seed 0"])
    assert lines[0] == (
        "all plain seed 0: left out: MEDFLARE_DATA is not set: export the folder that holds ie/notes."
    )
    assert [path.name for path in (tmp_path / "out/toy/all/plain").iterdir()] == ["0.lock"]
    monkeypatch.setenv("MEDFLARE_DATA", str(tmp_path))
    (tmp_path / "ie/notes").mkdir(parents=True)
    assert run_units(comparison, tmp_path / "out") == NotTrained()
    assert Toy.trained == [("better", 0), ("plain", 0)]


def test_what_is_not_here_is_an_error_for_one_comparison_and_none_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needing(tmp_path, "ie/notes")
    monkeypatch.setattr("method_comparison.__main__.names", lambda: ["toy"])
    monkeypatch.setenv("MEDFLARE_DATA", str(tmp_path))
    arguments = ["--seeds", "0", "--out", str(tmp_path / "out")]
    assert main(["run", "toy", *arguments]) == 2
    assert "1 unit(s) left out, which need what is not here: toy all plain seed 0" in capsys.readouterr().out
    assert main(["run", "all", *arguments]) == 0
    assert "and has no folder ie/notes." in capsys.readouterr().out


def test_a_model_that_is_not_here_says_how_it_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEDFLARE_MODELS", str(tmp_path))
    with pytest.raises(NotHereError, match=r"no model 'smollm2' on this machine.*medflare models add"):
        added_model("smollm2")


def test_a_unit_that_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    out, comparison = tmp_path / "out", Comparison.read("toy", Selection(seeds=(0,)))
    with ResultStore(out, "toy").claim("all", "plain", 0) as folder:
        assert folder is not None
        said: list[str] = []
        run_units(comparison, out, say=said.append)
    assert Toy.trained == [("better", 0)]
    assert said[0] == "all plain seed 0: another process trains it"
    said.clear()
    run_units(comparison, out, say=said.append)
    assert [line.split(":")[0] for line in said] == ["all plain seed 0"], (
        "what is complete is not named again"
    )


def damaged(path: Path, **change: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


def test_results_that_would_count_wrongly_are_refused(tmp_path: Path) -> None:
    out, comparison = tmp_path / "out", Comparison.read("toy")
    run_units(comparison, out)
    file = out / "toy/all/plain/0" / FILE
    kept = file.read_text()
    for change, said in (
        ({"schema_version": 2}, "is no result of schema 1: schema_version"),
        ({"note": "x"}, "is no result of schema 1: note"),
        ({"values": {"score": None}}, "is no result of schema 1: values.score"),
        ({"seed": 1}, "is the result of toy/all/plain/1 and would be counted twice"),
    ):
        damaged(file, **change)
        with pytest.raises(ConfigError, match=said):
            comparison.results(ResultStore(out, "toy"))
        file.write_text(kept)
    write(tmp_path, changed(settings={"steps": 9}))
    trained = len(Toy.trained)
    with pytest.raises(ConfigError, match="was made with other settings"):
        run_units(Comparison.read("toy"), out)
    assert len(Toy.trained) == trained, "nothing was trained"


def test_another_title_is_no_other_setting_and_another_method_touches_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_units(Comparison.read("toy"), out)
    methods = {**GIVEN["methods"], "new": {"title": "New"}, "plain": {"title": "As ever"}}
    write(tmp_path, changed(methods=methods, title="Another"))
    run_units(Comparison.read("toy"), out)
    assert [unit for unit in Toy.trained[10:]] == [("new", seed) for seed in range(5)]


COMMAND = "python -m method_comparison page toy"


def test_the_page_has_means_intervals_paired_differences_times_and_costs(tmp_path: Path) -> None:
    out, comparison = tmp_path / "out", Comparison.read("toy")
    run_units(comparison, out)
    text = write_page(comparison, out, tmp_path / "pages", COMMAND).read_text()
    assert "| Plain | 40.2 [40.0, 40.4] |" in text
    assert "| Better | 60.2 [60.0, 60.4] (+20.0*) |" in text
    assert "**all sites**" in text
    assert "(+10.0*)" in text, "F1 by study, 60 against 50"
    assert "| Better − Plain | +20.0* [+20.0, +20.0] |" in text
    assert "| Plain | 0 of 5 | 1.0 min | - |" in text
    assert "| Better | 5 of 5 | 0.3 min | 0.3 min |" in text
    assert "Not trained: nothing" in text
    assert "Rare" not in text
    assert (tmp_path / "pages/toy_all_score.svg").is_file()


def test_a_page_without_predictions_has_the_scores_that_results_keep(tmp_path: Path) -> None:
    out, comparison = tmp_path / "out", Comparison.read("toy")
    run_units(comparison, out)
    for file in out.glob("toy/all/better/*/predictions"):
        file.unlink()
    text = write_page(comparison, out, tmp_path / "pages", COMMAND).read_text()
    table = text[text.index("**all sites**") :]
    assert "| Plain | 50.0 |" in table, "of equal values there is no interval"
    assert "| Better | 60.0 (+10.0*) |" in table, "paired by seed as with predictions"
    assert "Predictions of some rows are not here" in table


def test_a_score_that_is_no_number_costs_no_trained_unit() -> None:
    run = Run({"f1": mean_statistic([1.0, 0.0]), "loss": mean_statistic([math.nan])}, ["a", "b"])
    assert runner.scores_by_place({"all sites": run}) == {"all sites": {"f1": 0.5}}


def test_a_page_names_rows_whose_scores_are_nowhere(tmp_path: Path) -> None:
    out, comparison = tmp_path / "out", Comparison.read("toy")
    run_units(comparison, out)
    for folder in (out / "toy/all/better").glob("[0-9]"):
        (folder / "predictions").unlink()
        result = json.loads((folder / FILE).read_text())
        del result["scores"]  # as results of before were
        (folder / FILE).write_text(json.dumps(result))
    text = write_page(comparison, out, tmp_path / "pages", COMMAND).read_text()
    assert "No scores by study of Better: what these predicted is not here" in text
    table = text[text.index("**all sites**") : text.index("No scores by study")]
    assert "| Plain | 50.0" in table
    assert "Better" not in table


def test_a_method_with_a_missing_seed_stands_in_no_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_units(Comparison.read("toy", Selection(methods=("plain",))), out)
    run_units(Comparison.read("toy", Selection(methods=("better",), seeds=(0,))), out)
    text = write_page(Comparison.read("toy"), out, tmp_path / "pages", COMMAND).read_text()
    assert "| Better | 60" not in text
    assert "Not trained: all better seed 1" in text


def test_the_small_part_has_settings_of_its_own(tmp_path: Path) -> None:
    comparison = Comparison.read("toy", small=True)
    assert list(comparison.units()) == [("all", "plain", 1)]
    assert comparison.settings == ToySettings(steps=1)
    assert Comparison.read("toy", Selection(settings={"steps": 7})).settings == ToySettings(steps=7)


def test_the_command_trains_writes_the_page_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["run", "toy", "--small", "--out", out]) == 0
    assert Toy.trained == [("plain", 1)]
    assert (tmp_path / "out/pages/toy.md").is_file()
    assert main(["run", "toy", "--out", out, "--seeds", "1,1"]) == 2
    assert "stands there twice" in capsys.readouterr().err


def test_a_page_compares_with_the_method_that_the_command_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["run", "toy", "--out", out, "--methods", "plain,better"]) == 0
    pages = str(tmp_path / "pages")
    assert main(["page", "toy", "--out", out, "--pages", pages, "--against", "better"]) == 0
    text = (tmp_path / "pages/toy.md").read_text()
    assert "| Plain − Better | -20.0* [-20.0, -20.0] |" in text
    again = re.findall(r"python -m method_comparison (page .+)", text)[0].split()
    assert main([*again, "--pages", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again/toy.md").read_text() == text, "the page's own command writes it again"
    assert main(["page", "toy", "--out", out, "--pages", pages, "--against", "rare"]) == 2
    assert "against: there is no rare; there are plain, better" in capsys.readouterr().err


@pytest.mark.parametrize("name", names())
def test_every_configuration_of_the_repository_can_be_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    for small in (False, True):
        assert list(Comparison.read(name, small=small).units())
    whole = Comparison.read(name)
    every = Comparison.read(name, Selection(methods=tuple(whole.configuration.methods)))
    every.check()


def test_a_rule_that_does_not_take_its_settings_is_named_before_anything_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    comparison = Comparison.read("ddcs", Selection(methods=("oort",)))
    comparison.own["oort"] = comparison.own["oort"].model_copy(update={"rule_settings": {"draws": 5}})
    with pytest.raises(ConfigError, match=r"ddcs.yaml, methods.oort: .*draws"):
        comparison.check()


def test_a_target_that_was_not_reached_is_censored_and_not_counted_as_the_end() -> None:
    """Kaplan-Meier by hand: S = 2/3 from 10 s on and 0 from 30 s on, when the run censored at 20 is gone."""
    curve = [(10.0, 0.2), (20.0, 0.6), (30.0, 0.4)]
    late, never = time_to_target(curve, 0.6, 60.0), time_to_target(curve, 0.6, 15.0)
    assert (late.seconds, late.reached) == (20.0, True)
    assert (never.seconds, never.reached) == (15.0, False)
    runs = [
        time_to_target([(10.0, 1.0)], 0.5, 40.0),
        time_to_target([(10.0, 0.0)], 0.5, 20.0),
        time_to_target([(30.0, 1.0)], 0.5, 40.0),
    ]
    assert restricted_mean(runs, 40.0) == pytest.approx(10 + 20 * 2 / 3)
    assert median(runs) == 30.0
    assert restricted_mean([never], 15.0) == 15.0
    assert median([never]) is None
