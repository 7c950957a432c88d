# SPDX-License-Identifier: Apache-2.0
"""The traps of FLARE 2.9 that a job or a workspace can fall into, one test each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fed_harness import completed
from fed_toy import ToyLearner
from nvflare.apis.fl_constant import ReturnCode

from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.federation.site.executor import LearnerExecutor
from medflare.recipes import allow_list
from medflare.recipes.flare_traps import flare_traps
from medflare.recipes.job import CLIENT_CONFIG, SERVER_CONFIG, Job
from medflare.recipes.job_check import check_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.moved_classes import MOVED_JOB_CLASSES
from medflare.worker.config import site_file

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / allow_list.TEMPLATE
JOB = Job(title="trial", method="fedmrg")


def test_the_committed_class_list_is_the_generated_one() -> None:
    assert json.loads(TEMPLATE.read_text()) == allow_list.resources()


def test_the_class_list_names_classes_and_no_prefix() -> None:
    listed = allow_list.allowed_classes()
    assert not [name for name in listed if name.endswith(".") or name.count(".") < 2 or "*" in name]
    assert not [
        name for name in listed if name.startswith("medflare.") and not name.split(".")[-1][0].isupper()
    ]
    assert len(set(listed)) == len(listed)


def test_resources_hold_no_key_that_flare_would_broadcast_and_logs_stay() -> None:
    written = json.loads(TEMPLATE.read_text())
    known = {"format_version", "allow_log_streaming", "class_list_enforcement_mode", "class_allow_list"}
    assert set(written) == known
    assert written["allow_log_streaming"] is False
    assert written["class_list_enforcement_mode"] == "enforce"


def test_a_job_names_only_listed_classes() -> None:
    check_job(JOB)
    named = {
        part["path"]
        for config in JOB.files().values()
        for part in [*config.get("components", []), *config.get("workflows", [])]
    }
    assert named <= set(allow_list.allowed_classes())


def test_a_job_folder_of_an_earlier_release_is_told_where_each_class_is_now(tmp_path: Path) -> None:
    folder = JOB.write(tmp_path / "trial")
    present, named = {new: old for old, new in MOVED_JOB_CLASSES.items()}, set[str]()
    for file in (folder / SERVER_CONFIG, folder / CLIENT_CONFIG):
        text = file.read_text()
        for new, old in present.items():
            named |= {old} if f'"{new}"' in text else set()
            text = text.replace(f'"{new}"', f'"{old}"')
        file.write_text(text)
    assert len(named) == 5, "all but the controller of the other workflow"
    with pytest.raises(ConfigError) as error:
        read_job(folder)
    for old in named:
        assert f"class {old} has moved to {MOVED_JOB_CLASSES[old]}. Export the job again" in str(error.value)


def test_the_table_of_moved_classes_covers_every_class_that_a_job_may_name() -> None:
    assert set(MOVED_JOB_CLASSES.values()) == {allow_list.class_path(kind) for kind in allow_list.COMPONENTS}
    assert not set(MOVED_JOB_CLASSES) & set(allow_list.allowed_classes())
    assert flare_traps({"path": "medflare.federation.executor.LearnerExecutor"})[0].startswith(
        "class medflare.federation.executor.LearnerExecutor has moved to medflare.federation.site.executor."
    )


def test_nested_settings_are_marked_so_that_flare_builds_no_component_from_them() -> None:
    settings = {"encoder": {"name": "small", "more": [{"path": "subprocess.Popen"}]}}
    job = Job(title="trial", method="fedmrg", settings=settings)
    written = job.files()[CLIENT_CONFIG]["executors"][0]["executor"]["args"]
    assert written["settings"]["encoder"]["config_type"] == "dict"
    assert written["settings"]["encoder"]["more"][0]["config_type"] == "dict"
    assert not flare_traps(job.files()[CLIENT_CONFIG])
    assert LearnerExecutor(**written).args.settings == settings


def test_an_unmarked_nested_component_is_found(tmp_path: Path) -> None:
    files = JOB.files()
    files[CLIENT_CONFIG]["executors"][0]["executor"]["args"]["settings"] = {"x": {"path": "subprocess.Popen"}}
    assert flare_traps(files[CLIENT_CONFIG]) == ["FLARE takes the key 'path' for a component; rename it"]


def test_jobs_poll_every_tenth_of_a_second_and_carry_no_code() -> None:
    server = JOB.files()[SERVER_CONFIG]
    assert server["server"]["task_request_interval"] == 0.1
    assert not [name for name in JOB.files() if "custom" in name]


def test_all_errors_of_a_job_are_reported_together() -> None:
    wrong = Job(
        title="trial",
        method="fedmgr",
        controller={"num_round": 3, "deadline": -1},
        executor={"worker": "fork"},
        aggregation={"rule": "mean"},
    )
    with pytest.raises(ConfigError) as caught:
        check_job(wrong)
    text = str(caught.value)
    for part in ("Did you mean 'num_rounds'", "deadline", "worker", "rule 'mean'", "method 'fedmgr'"):
        assert part in text


def test_a_job_cannot_name_an_import_path_as_method() -> None:
    with pytest.raises(ConfigError, match=r"does not exist\. Methods: "):
        LearnerExecutor(method="os:system")


def test_an_unknown_task_is_told_so_and_no_error_reaches_flare(federation) -> None:
    run = federation()
    run.run()
    executor = run.executors["site-1"]
    assert executor.execute("train", None, None, None).get_return_code() == ReturnCode.TASK_UNKNOWN


def test_a_learners_runtime_error_does_not_abort_the_job(federation) -> None:
    class Failing(ToyLearner):
        def evaluate(self, split: str, plan: RoundPlan) -> dict[str, float]:
            if self.site == "site-1":
                raise RuntimeError("CUDA out of memory while reading John Doe")
            return super().evaluate(split, plan)

    run = federation(controller={"num_rounds": 1, "min_responses": 1}, learner=Failing)
    record = completed(run)
    assert "val_loss" in record.rounds[0].metrics["site-2"]
    assert "val_loss" not in record.rounds[0].mean
    assert "out of memory" not in (run.folder / "progress.jsonl").read_text()


def test_the_simulators_copy_of_site_yaml_gives_way_to_the_original(tmp_path: Path) -> None:
    for folder in ("local", "site-1/local"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "site.yaml").write_text("sites: {}")
    local_file = tmp_path / "site-1/local/site.yaml"
    assert site_file(tmp_path / "site-1", local_file.parent) == tmp_path / "local/site.yaml"
    local_file.write_text("name: site-1")
    assert site_file(tmp_path / "site-1", local_file.parent) == local_file
