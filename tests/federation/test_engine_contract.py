# SPDX-License-Identifier: Apache-2.0
"""Every FLARE symbol we use, and what we rely on; this file fails first when FLARE changes."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch
from nvflare.fuel.utils import fobs
from nvflare.lighter.tool_consts import NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import generate_keys, sign_folders

from federation_root import Root
from medflare.federation import engine, engine_jobs
from medflare.federation.site.submissions import read_signature
from medflare.recipes.admin_submissions import OF_FLARE

ROOM = Path(engine.__file__).parent


def parameters(function) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_only_two_modules_import_nvflare() -> None:
    importers = set()
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "nvflare" for name in names):
                importers.add(path.name)
    assert importers == {"engine.py", "engine_jobs.py"}


def test_no_private_module_is_imported() -> None:
    assert not [p for p in ROOM.rglob("*.py") if "import nvflare.private" in p.read_text()]
    assert not [p for p in ROOM.rglob("*.py") if "from nvflare.private" in p.read_text()]


def test_another_minor_release_is_refused() -> None:
    with pytest.raises(ImportError, match=r"nvflare 2\.10\.0 is installed"):
        engine.check_version("2.10.0")


def test_torch_tensors_travel_because_the_decomposer_is_registered() -> None:
    state = {"w": torch.randn(3).to(torch.bfloat16)}
    back = fobs.loads(fobs.dumps(state))
    assert torch.equal(back["w"], state["w"])


def test_signers_of_a_folder_are_named_by_their_certificates(tmp_path: Path) -> None:
    root, folder = Root(), tmp_path / "job"
    (folder / "app").mkdir(parents=True)
    (folder / "app/config.json").write_text("{}")
    root.sign(folder, "lead@hospital-a.org", "hospital_a", "lead")
    certificate = str(root.write(tmp_path) / "startup/rootCA.pem")
    read = engine.verify_folder_signature_and_get_signers
    assert read(str(folder), certificate) == (True, [("lead@hospital-a.org", "hospital_a", "lead")])
    (folder / "app/config.json").write_text("{ }")
    assert read(str(folder), certificate) == (False, [])


def test_each_signing_of_a_file_gives_another_signature(tmp_path: Path) -> None:
    """By which a site tells one submission of a job from another (S17)."""
    file, (key, _) = tmp_path / "config_fed_client.json", generate_keys()
    file.write_text("{}")
    found = set()
    for _ in range(2):
        sign_folders(str(tmp_path), key)
        found.add(read_signature(file))
    assert len(found) == 2
    assert {path.name for path in tmp_path.iterdir()} == {file.name, *OF_FLARE} - {NVFLARE_SUBMITTER_CRT_FILE}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            engine.Controller.broadcast,
            ["task", "fl_ctx", "targets", "min_responses", "wait_time_after_min_received"],
        ),
        (engine.Controller.cancel_task, ["task", "completion_status", "fl_ctx"]),
        (engine.Controller.get_client_disconnect_time, ["client_name"]),
        (engine.Controller.system_panic, ["reason", "fl_ctx"]),
        (engine.Executor.execute, ["task_name", "shareable", "fl_ctx", "abort_signal"]),
        (engine.FLComponent.handle_event, ["event_type", "fl_ctx"]),
        (engine.Shareable.set_header, ["key", "value"]),
        (engine.from_shareable, ["s"]),
        (engine.make_reply, ["rc", "headers"]),
        (engine.GroupInfoCollector.add_info, ["group_name", "info"]),
        (engine_jobs.FedJob.export_job, ["job_root"]),
        (
            engine_jobs.FedJob.simulator_run,
            ["workspace", "n_clients", "clients", "threads", "gpu", "log_config"],
        ),
    ],
)
def test_signatures(function, expected: list[str]) -> None:
    assert parameters(function) == expected


def test_constants_and_constructors() -> None:
    assert {"after_task_sent_cb", "result_received_cb"} <= set(parameters(engine.Task.__init__))
    assert {"clients", "num_threads", "workspace_root"} <= set(parameters(engine_jobs.SimEnv.__init__))
    assert engine.EventType.START_RUN
    assert engine.EventType.END_RUN
    assert engine.EventType.AUTHORIZE_COMMAND_CHECK
    keys = engine.FLContextKey
    assert {keys.SECURITY_ITEMS, keys.JOB_META, keys.COMMAND_NAME, keys.WORKSPACE_ROOT}
    assert {keys.AUTHORIZATION_RESULT, keys.AUTHORIZATION_REASON}
    assert {keys.SUBMITTER_NAME, keys.SUBMITTER_ORG, keys.SUBMITTER_ROLE}
    assert engine.AppConstants.CURRENT_ROUND == "current_round"
    assert engine.MetaKey.NUM_STEPS_CURRENT_ROUND == "NUM_STEPS_CURRENT_ROUND"
    assert {engine.DataKind.WEIGHTS, engine.DataKind.WEIGHT_DIFF, engine.DataKind.APP_DEFINED}
    codes = engine.ReturnCode
    assert {codes.OK, codes.EXECUTION_EXCEPTION, codes.TASK_ABORTED, codes.TASK_UNKNOWN}
    assert engine.InfoCollector.EVENT_TYPE_GET_STATS
    assert engine.InfoCollector.CTX_KEY_STATS_COLLECTOR
    assert len(engine.DEFAULT_CLASS_ALLOW_LIST) > 50
    assert parameters(engine.SimpleJobDefManager.__init__)[:2] == ["uri_root", "job_store_id"]
    assert parameters(engine.SimpleJobDefManager.update_meta) == ["jid", "meta", "fl_ctx"]
    assert engine.JobMetaKey.JOB_DEPLOY_DETAIL.value == "job_deploy_detail"
    assert engine.FLContextKey.RESOURCE_CHECK_RESULT
    assert parameters(engine.FilesystemStorage.__init__)[:2] == ["root_dir", "uri_root"]
    assert {"OK", "INVALID_SIGNATURE", "NO_SUCH_CONTENT", "NOT_SIGNED"} <= set(engine.LoadResult.__members__)
    assert parameters(engine.SecurityContentManager.load_content) == ["file_under_verification"]
    assert engine.Signal().triggered is False
    assert engine.Client("a", "token").name == "a"
    assert engine.ClientTask(engine.Client("a", "t"), engine.Task("t", engine.Shareable())).result is None
