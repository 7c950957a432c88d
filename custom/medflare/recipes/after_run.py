# SPDX-License-Identifier: Apache-2.0
"""After a run: find its record, test its adapters on a hospital's records, compare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from medflare.core.errors import ConfigError, DataError
from medflare.core.method import Method
from medflare.core.run_record import ComparisonRecord, EvaluationRecord, RunRecord, read_record
from medflare.data.settings.site import SiteConfig, load_site, load_site_file
from medflare.learners.registry import methods_by_result_file
from medflare.recipes.paired_scores import ScoredSystem, paired_scores
from medflare.recipes.simulator_process import SERVER_FOLDER
from medflare.synthetic.site_files import SYNTHETIC_HOSPITALS
from medflare.tasks import get_task
from medflare.tasks.scoring import EvaluationOptions, Progress


def locate(run: Path) -> Path:
    """Return the run.json of a run.

    Args:
        run: the file itself, its folder, or a simulator workspace.

    Raises:
        DataError: there is none.
    """
    for candidate in (run, run / "run.json", run / SERVER_FOLDER / "run.json"):
        if candidate.is_file():
            return candidate
    raise DataError(f"{run}: {_why_no_record(run)}")


def _why_no_record(run: Path) -> str:
    if not run.exists():
        return "there is no such file or folder, so there is no run record. Name a folder of `medflare run`."
    if is_result_folder(run):
        return (
            "is an adapter, and there is no run record (run.json) beside it. `medflare evaluate -f "
            "site.yaml`, `generate` and `extract` take it as it is."
        )
    below = sorted(path.name for path in run.glob("*") if (path / SERVER_FOLDER / "run.json").is_file())
    if below:
        return f"there is no run record, but there are runs in it; name one: {', '.join(below[:5])}."
    return "there is no run record. Name a folder that `medflare run` made."


def kept_adapter(record_path: Path, record: RunRecord, adapter: str) -> Path:
    """Return the folder of an adapter that a run kept.

    Raises:
        DataError: it kept none of this name; says what it has, and how the run ended.
    """
    if adapter in record.artefacts:
        return record_path.parent / record.artefacts[adapter]
    others = f"; it has: {', '.join(record.artefacts)}" if record.artefacts else ""
    ended = f" The run is {record.status}" + (f": {record.reason[:300]}" if record.reason else ".")
    raise DataError(f"{record_path}: the run kept no {adapter} adapter{others}.{ended}")


def score_site(
    record_path: Path,
    site: SiteConfig,
    *,
    adapter: Literal["final", "best"] = "final",
    personalised: Path | None = None,
    split: str = "test",
    scorers: Mapping[str, str | Path] | None = None,
    options: EvaluationOptions = EvaluationOptions(),
) -> EvaluationRecord:
    """Test a run's adapter on a site's split and add the evaluation to the record.

    A record has the scores of the final adapter on whole splits. A test of the best one, or of a part of the
    records, would take their place, and is not added.

    Args:
        personalised: the site's own `personalised` folder, instead of the global adapter.
    """
    record = read_record(record_path)
    evaluation = _test(
        kept_adapter(record_path, record, adapter),
        record_path.parent,
        site,
        role="participant" if site.name in record.sites else "unseen",
        seed=record.seed,
        kind=adapter,
        personalised=personalised,
        split=split,
        scorers=scorers,
        options=options,
    )
    if options.limit is not None or adapter != "final":
        return evaluation
    record = read_record(record_path)  # anew: another test may have been added while this one went on
    same = (evaluation.site, evaluation.adapter, evaluation.split)
    record.evaluations = [e for e in record.evaluations if (e.site, e.adapter, e.split) != same] + [
        evaluation
    ]
    if split == "test":  # what stood there compared what the new test took the place of
        record.comparisons = [item for item in record.comparisons if item.site != site.name]
        record.comparisons += _adapters_compared(record, record_path.parent, site.name)
    record.write(record_path)
    return evaluation


def score_folder(
    result: Path,
    site: SiteConfig,
    *,
    took_part: bool,
    personalised: Path | None = None,
    split: str = "test",
    scorers: Mapping[str, str | Path] | None = None,
    options: EvaluationOptions = EvaluationOptions(),
) -> EvaluationRecord:
    """Test a result folder that came without its run, on a site's split; predictions lie beside the folder.

    Args:
        took_part: whether the site may have trained it: then records of its split alone are tested.
        personalised: the site's own `personalised` folder, instead of the global adapter.

    Raises:
        DataError: no file in the folder belongs to a method.
    """
    return _test(
        result,
        result.parent,
        site,
        role="participant" if took_part else "unseen",
        seed=0,
        kind="final",
        personalised=personalised,
        split=split,
        scorers=scorers,
        options=options,
    )


def _test(
    result: Path,
    base: Path,
    site: SiteConfig,
    *,
    role: Literal["participant", "unseen"],
    seed: int,
    kind: str,
    personalised: Path | None,
    split: str,
    scorers: Mapping[str, str | Path] | None,
    options: EvaluationOptions,
) -> EvaluationRecord:
    """Test a result folder; predictions lie in `evaluation/SITE` of the folder `base`."""
    task = result_method(result).task
    if options.reference_words and task != "reports":
        raise ConfigError(f"--reference-words is for reports; {result} is of the task {task}.")
    torch.set_num_threads(site.threads)
    place = f"evaluation/{site.name}" if split == "test" else f"evaluation/{site.name}@{split}"
    if kind != "final":
        place += f"@{kind}"
    if options.limit is not None:
        place += f"@first-{options.limit}"
    evaluation: EvaluationRecord = tester(result)(
        result,
        site,
        role=role,
        adapter=personalised,
        split=split,
        folder=base / place,
        seed=seed,
        options=options,
        **({"scorers": scorers} if scorers else {}),
    )
    return evaluation.model_copy(update={"split": split, "predictions": f"{place}/{evaluation.predictions}"})


def is_result_folder(path: Path) -> bool:
    """Return whether a folder holds what a run made, an adapter with the file of its method beside it."""
    return any((path / file).is_file() for file in methods_by_result_file())


def tester(result: Path) -> Callable[..., EvaluationRecord]:
    """Return what tests a result folder on a site: the scorer of its method's task."""
    return get_task(result_method(result).task).load_scorer()


def result_method(result: Path) -> Method[Any]:
    """Return the method whose file lies in a result folder.

    Raises:
        DataError: no file there belongs to a method.
    """
    files = methods_by_result_file()
    for file, method in files.items():
        if (result / file).is_file():
            return method
    raise DataError(f"{result}: nothing beside the adapter says what it is for ({', '.join(files)}).")


def compare_adapters(record_path: Path) -> None:
    """Add the paired difference of personalised and generic adapter where predictions are here."""
    record = read_record(record_path)
    record.comparisons = [
        difference
        for site in sorted({item.site for item in record.evaluations})
        for difference in _adapters_compared(record, record_path.parent, site)
    ]
    record.write(record_path)


def _adapters_compared(record: RunRecord, folder: Path, site: str) -> list[ComparisonRecord]:
    """Return personalised minus generic adapter on the test records of a site that has both."""
    tested = {item.adapter: item for item in record.evaluations if (item.site, item.split) == (site, "test")}
    if not {"personalised", "generic"} <= tested.keys():
        return []
    ours, theirs = (
        ScoredSystem(f"{record.method} {kind}", tested[kind]) for kind in ("personalised", "generic")
    )
    return paired_scores(ours, theirs, folder=folder, task=record.task, seed=record.seed)


def name_synthetic_sites(record_path: Path, site_file: Path) -> None:
    """Add to the record which of its sites, or of those it was tested at, have cohorts that medflare made."""
    record, sites = read_record(record_path), load_site_file(site_file)
    tested = {*record.sites, *(item.site for item in record.evaluations)}
    record.synthetic = sorted(name for name in tested & sites.keys() if _is_synthetic(sites[name]))
    if record.synthetic:
        record.write(record_path)


def _is_synthetic(site: SiteConfig) -> bool:
    """Return whether each of the site's folders lies beside a site.yaml of synthetic hospitals."""
    folders = [cohort.root.parent for cohort in site.cohort]
    return bool(folders) and all(map(SYNTHETIC_HOSPITALS.made, folders))


def score_unseen(
    record_path: Path, site_file: Path, name: str, progress: Progress | None = None
) -> EvaluationRecord:
    """Test the final global adapter on a hospital that took no part."""
    return score_site(record_path, load_site(site_file, name), options=EvaluationOptions(progress=progress))
