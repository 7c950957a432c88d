# SPDX-License-Identifier: Apache-2.0
"""A server that lies to an admin who fetches a result or goes on with a run, through FLARE's own client."""

from __future__ import annotations

import logging
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import ProduceRC
from nvflare.fuel.flare_api import flare_api
from nvflare.fuel.flare_api.flare_api import Session
from nvflare.fuel.hci.client import file_transfer
from nvflare.fuel.hci.client.api import AdminAPI
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.cmd_arg_utils import split_to_args

from federation_root import Root
from medflare.core.errors import RunError
from medflare.recipes import admin_downloads, admin_jobs, admin_runs, admin_submissions
from medflare.recipes.admin_downloads import KEPT_FREE, check_downloads
from medflare.recipes.admin_jobs import download_job, submit_job
from medflare.recipes.admin_runs import resume_job, watch_job
from medflare.recipes.admin_submissions import check_submission, digests, remember_submission
from medflare.recipes.job import CLIENT_CONFIG, SERVER_CONFIG
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override
from medflare.wire.disk_space import DiskFullError
from medflare.wire.durable import write_json

HONEST = {"tx_id": "3f2c0d6e-1111-4a4a-8a8a-0123456789ab", "source_fqcn": "server"}
BROKEN = ["config.json", "broken"]
"""A file that does not arrive: FLARE's client deletes the folder of the transfer then."""
SECRET = "what the server wants to be somewhere"


class Client:
    """FLARE's admin client without a network: its own file transfer, and a server's answers."""

    closed = False

    def __init__(self, folder: Path, offer: dict[str, Any]) -> None:
        self.session_abort_signal = Signal()
        self.offer, self.files = offer, FileTransferModule(upload_dir=str(folder), download_dir=str(folder))

    def do_command(self, command: str, props: Any = None) -> Any:
        args = split_to_args(command)
        entry = SimpleNamespace(full_command_name=lambda: args[0], usage="")
        ctx = SimpleNamespace(get_api=lambda: self, get_command_entry=lambda: entry)
        ctx.set_requester = lambda requester: setattr(ctx, "requester", requester)
        ctx.set_command_result = lambda result: setattr(ctx, "result", result)
        ctx.get_command = lambda: command
        pull = self.files.pull_binary_file if args[0] == "pull_binary_file" else self.files.pull_folder
        return pull(args, ctx)

    def server_execute(self, command: str, cmd_ctx: Any = None) -> Any:
        if cmd_ctx is None:
            return {"status": "SUCCESS", "meta": {"status": "ok", **self.offer}}
        cmd_ctx.requester.send_request(self, None, cmd_ctx)
        return cmd_ctx.result

    def download_file(self, source: str, ref: str, place: str) -> int | None:
        if ref == BROKEN[1]:
            return None
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        return Path(place).write_text(SECRET)

    def debug(self, text: str) -> None: ...

    def fire_session_event(self, event: str, text: str) -> None: ...


def session(folder: Path, offer: dict[str, Any]) -> Session:
    opened = object.__new__(Session)
    folder.mkdir(exist_ok=True)
    opened.api = Client(folder, offer)
    return opened


def places(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def attacks(folder: Path) -> dict[str, dict[str, Any]]:
    files = [["config.json", "r1"]]
    return {
        "a name that climbs": {**HONEST, "files": [["../../../elsewhere/authorized_keys", "r1"]]},
        "an absolute name": {**HONEST, "files": [[str(folder / "elsewhere/authorized_keys"), "r1"]]},
        "a transfer that climbs": {**HONEST, "tx_id": "/../../../elsewhere", "files": files},
        "a transfer that climbs and fails": {**HONEST, "tx_id": "/../../../elsewhere", "files": [BROKEN]},
        "files that are no list": {**HONEST, "tx_id": "/../../../elsewhere", "files": (files[0],)},
        "a place to move": {"location": str(folder / "elsewhere")},
    }


NAMES = list(attacks(Path("/")))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An admin's machine: a kit's folder for transfers, and something that no server may touch."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine").write_text("mine")
    (tmp_path / "kit").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_flares_client_alone_would_do_it(home: Path, name: str) -> None:
    """The positive control: without the check, each attack writes, deletes or moves what it must not."""
    transfers = home / "kit/transfer"
    transfers.mkdir()
    (transfers / "j1__").mkdir()
    with suppress(RuntimeError):  # of the transfer that fails
        session(transfers, attacks(home)[name]).download_job_result("j1", destination=str(home / "results"))
    assert places(home / "elsewhere") != ["mine"]


@pytest.mark.parametrize("name", NAMES)
def test_a_server_writes_and_moves_nothing_on_an_admins_machine(home: Path, name: str) -> None:
    lying = session(home / "kit/transfer", attacks(home)[name])
    check_downloads(lying.api, home)
    before = places(home)
    with pytest.raises(RunError, match="no honest one does"):
        lying.download_job_result("j1", destination=str(home / "results"))
    assert places(home) == before


def test_an_honest_servers_files_arrive(home: Path) -> None:
    honest = session(
        home / "kit/transfer", {**HONEST, "files": [["workspace/a b.json", "r1"], ["meta.json", "r2"]]}
    )
    check_downloads(honest.api, home)
    honest.download_job_result("j1", destination=str(home / "results"))
    assert places(home / "results") == ["j1/meta.json", "j1/workspace/a b.json"]


# ---- a full disk -------------------------------------------------------------------------------------------


class EndlessCell:
    """FLARE's cell to a server whose files have no end, and a disk on which they are counted.

    Attributes:
        sent: bytes so far. An end comes after `MOST`, so that a client without a check comes to one.
    """

    MOST, PART = 40_000_000, 1_000_000

    def __init__(self) -> None:
        self.sent = 0

    def send_request(self, **request: Any) -> Message:
        self.sent += self.PART
        status = ProduceRC.OK if self.sent <= self.MOST else ProduceRC.EOF
        payload = {"status": status, "data": bytes(self.PART), "state": {"received_bytes": self.sent}}
        return Message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, payload)

    def register_request_cb(self, *args: Any, **options: Any) -> None: ...

    def fire_and_forget(self, *args: Any, **options: Any) -> None: ...


class DownloadingClient(Client):
    """The client with FLARE's own loop over the parts of a file."""

    file_download_progress_timeout = 1.0
    logger = logging.getLogger(__name__)
    download_file = AdminAPI.download_file

    def __init__(self, folder: Path, offer: dict[str, Any]) -> None:
        super().__init__(folder, offer)
        self.cell = EndlessCell()

    def _print_hci(self, text: str) -> None: ...


@pytest.fixture
def downloading(home: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session at a server that sends without end, on a disk with twenty megabytes to spare."""
    opened = session(home / "kit/transfer", {})
    opened.api = DownloadingClient(home / "kit/transfer", {**HONEST, "files": [["model.bin", "r1"]]})
    (home / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "temporary"))
    free = KEPT_FREE + 20_000_000
    monkeypatch.setattr(
        admin_downloads.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free - opened.api.cell.sent)
    )
    return opened


def test_flares_client_alone_takes_what_comes(downloading: Session, home: Path) -> None:
    downloading.download_job_result("j1", destination=str(home / "results"))
    assert downloading.api.cell.sent > EndlessCell.MOST


def test_a_download_ends_before_the_disk_is_full_and_leaves_nothing(downloading: Session, home: Path) -> None:
    watch = check_downloads(downloading.api, home)
    with pytest.raises(RuntimeError):
        downloading.download_job_result("j1", destination=str(home / "results"))
    assert downloading.api.cell.sent <= 21_000_000
    assert "MB are free" in watch.full
    assert places(home) == ["elsewhere/mine"]


def test_the_admin_is_told_why(downloading: Session, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flare_api, "new_secure_session", lambda user, kit, timeout: downloading)
    monkeypatch.setattr(Session, "set_timeout", lambda self, seconds: None)
    monkeypatch.setattr(Session, "close", lambda self: None)
    write_json(home / "kit/startup/fed_admin.json", {"admin": {"username": "lead@hospital-a.org"}})
    with pytest.raises(RunError, match=r"MB are free in .*, and 1,000 must stay so: the download was ended"):
        download_job(home / "kit", "j1", home / "results")


def test_an_archive_that_would_fill_the_disk_is_not_opened(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty kilobytes that become thirty megabytes."""
    lying = session(home / "kit/transfer", {**HONEST, "files": [["workspace.zip", "r1"]]})

    def download(source: str, ref: str, place: str) -> int:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros", bytes(30_000_000))
        return 1

    monkeypatch.setattr(lying.api, "download_file", download)
    usage = SimpleNamespace(free=KEPT_FREE + 20_000_000)
    monkeypatch.setattr(admin_downloads.shutil, "disk_usage", lambda folder: usage)
    monkeypatch.setattr(file_transfer, "unzip_all_from_file", file_transfer.unzip_all_from_file)
    watch = check_downloads(lying.api, home)
    with pytest.raises(RuntimeError):
        lying.download_job_result("j1", destination=str(home / "results"))
    assert "MB are free" in watch.full
    assert places(home) == ["elsewhere/mine"]


# ---- a run that is gone on with ----------------------------------------------------------------------------


@dataclass
class Server:
    """A session at a server that shows some folder as the job of any run, and calls what comes in j2."""

    shown: Path
    submitted: list[Path] = field(default_factory=list)

    def download_job_result(self, run: str, destination: str) -> str:
        return str(shutil.copytree(self.shown, Path(destination) / run))

    def submit_job(self, folder: str) -> str:
        self.submitted.append(Path(folder))
        return "j2"


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job folder as an admin submits it."""
    folder = tmp_path / "shown/fedmrg"
    (folder / "app/config").mkdir(parents=True)
    write_json(folder / "meta.json", {"name": "fedmrg"})
    write_json(folder / SERVER_CONFIG, {"workflows": [{"args": {}}]})
    write_json(folder / CLIENT_CONFIG, {"executors": [{"executor": {"args": {"protection": "mask"}}}]})
    return folder


def without_masks(folder: Path, root: Root) -> None:
    """The change that a server would want: the job's updates in the clear."""
    write_json(folder / CLIENT_CONFIG, {"executors": [{"executor": {"args": {"protection": "none"}}}]})


def signed_by_the_server(folder: Path, root: Root) -> None:
    without_masks(folder, root)
    root.sign(folder, "server", role=None)


def signed_under_another_root(folder: Path, root: Root) -> None:
    without_masks(folder, root)
    Root().sign(folder, "lead@hospital-a.org")


def a_file_more(folder: Path, root: Root) -> None:
    (folder / "app/learner.py").write_text("")


@pytest.fixture
def server(job: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    shown = Server(job.parent)
    monkeypatch.setattr(admin_runs, "admin_session", lambda kit: nullcontext(shown))
    return shown


def test_an_admin_goes_on_with_the_job_that_an_admin_signed(
    server: Server, root: Root, job: Path, tmp_path: Path
) -> None:
    root.sign(job, "lead@hospital-a.org")
    assert resume_job(root.write(tmp_path / "kit"), "j1") == "j2"
    assert len(server.submitted) == 1


@pytest.mark.parametrize(
    "change", [without_masks, signed_by_the_server, signed_under_another_root, a_file_more]
)
def test_an_admin_signs_no_job_that_the_server_made(
    server: Server, root: Root, job: Path, tmp_path: Path, change: Callable[[Path, Root], None]
) -> None:
    root.sign(job, "lead@hospital-a.org")
    change(job, root)
    with pytest.raises(RunError, match="not what an admin of this federation signed"):
        resume_job(root.write(tmp_path / "kit"), "j1")
    assert server.submitted == []


@pytest.fixture
def dying(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The same server, which says of every job that its processes died; at the fifth, the test fails."""

    def ended(kit: Path, job: str) -> str:
        assert len(server.submitted) < 5, "the run goes on for ever"
        return "FINISHED:EXECUTION_EXCEPTION"

    monkeypatch.setattr(admin_runs, "wait_for_job", ended)
    monkeypatch.setattr(admin_runs, "_fetched", lambda *_: server.shown)
    return server


def resumptions(folder: Path, number: Any) -> None:
    write_json(folder / SERVER_CONFIG, {"workflows": [{"args": {"max_resumptions": number}}]})


def test_a_watched_run_goes_on_as_often_as_its_signed_job_allows(
    dying: Server, root: Root, job: Path, tmp_path: Path
) -> None:
    resumptions(job, 2)
    root.sign(job, "lead@hospital-a.org")
    with pytest.raises(RunError, match="run j1 is running"):
        watch_job(root.write(tmp_path / "kit"), "j1", "j1", print)
    assert len(dying.submitted) == 2


def test_a_server_has_no_run_go_on_more_often_than_was_signed(
    dying: Server, root: Root, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows the signed job where it is submitted again, and another to whoever counts."""
    root.sign(job, "lead@hospital-a.org")
    other = Path(shutil.copytree(job.parent, tmp_path / "other"))
    resumptions(other / job.name, 10**9)
    monkeypatch.setattr(admin_runs, "_fetched", lambda *_: other)
    with pytest.raises(RunError, match="not what an admin of this federation signed"):
        watch_job(root.write(tmp_path / "kit"), "j1", "j1", print)
    assert dying.submitted == []


@pytest.mark.parametrize("number", ["many", -1, None, [2], True, 1.5])
def test_a_number_of_resumptions_that_is_none_is_said_in_words(
    dying: Server, root: Root, job: Path, tmp_path: Path, number: Any
) -> None:
    resumptions(job, number)
    with pytest.raises(RunError, match="does not say how often the run goes on by itself"):
        watch_job(root.write(tmp_path / "kit"), "j1", "j1", print)
    write_json(job / SERVER_CONFIG, {"workflows": []})
    with pytest.raises(RunError, match="does not say how often"):
        watch_job(root.write(tmp_path / "kit"), "j1", "j1", print)


def test_an_admin_goes_on_with_no_other_signed_job_than_the_kit_submitted(
    server: Server, root: Root, job: Path, tmp_path: Path
) -> None:
    """As one without masks that was signed for another purpose."""
    kit = root.write(tmp_path / "kit")
    remember_submission(kit, "j1", digests(job))
    root.sign(job, "lead@hospital-a.org")
    assert resume_job(kit, "j1") == "j2"
    without_masks(job, root)
    root.sign(job, "lead@hospital-a.org")
    with pytest.raises(RunError, match="another job than this kit submitted as j1"):
        resume_job(kit, "j1")
    assert len(server.submitted) == 1


def test_what_the_kit_submits_is_remembered_under_the_id_that_the_server_gives(
    server: Server, root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_jobs, "asking_session", lambda kit, otherwise: nullcontext(server))
    kit, own = tmp_path / "kit", Path(__file__).parents[2] / "jobs/fed_medlora"
    assert submit_job(kit, own, {"num_rounds": 2}) == "j2"
    server.shown = tmp_path / "other"
    override(read_job(own), {"num_rounds": 2}).write(server.shown / "job")
    root.sign(server.shown / "job", "lead@hospital-a.org")
    assert resume_job(root.write(kit), "j2") == "j2"
    override(read_job(own), {"num_rounds": 3}).write(server.shown / "job")
    root.sign(server.shown / "job", "lead@hospital-a.org")
    with pytest.raises(RunError, match="another job than this kit submitted as j2"):
        resume_job(kit, "j2")


def test_the_id_of_an_earlier_job_does_not_replace_what_the_kit_remembers(tmp_path: Path, job: Path) -> None:
    """Else the server would have a later job gone on with in place of the earlier one."""
    remember_submission(tmp_path, "j1", digests(job))
    with pytest.raises(RunError, match="no honest one does"):
        remember_submission(tmp_path, "j1", {})
    check_submission(tmp_path, "j1", job)


@pytest.mark.parametrize("full", [True, False])
def test_a_job_that_the_kit_cannot_remember_is_named(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def no_space(file: Path, data: Any) -> None:
        raise DiskFullError(file.parent)

    monkeypatch.setattr(admin_jobs, "asking_session", lambda kit, otherwise: nullcontext(server))
    kit = tmp_path / "kit"
    kit.write_text("no folder, so nothing can be written in it")
    if full:
        monkeypatch.setattr(admin_submissions, "write_json", no_space)
    with pytest.raises(RunError, match=r"job j2 is submitted, .*`medflare job status j2`"):
        submit_job(kit, Path(__file__).parents[2] / "jobs/fed_medlora", {})
    assert len(server.submitted) == 1


@pytest.mark.parametrize("number", ["../../startup/client", "/etc/cron.d/x", "", "j 1"])
def test_an_id_that_climbs_is_no_file_of_the_kit(tmp_path: Path, number: str) -> None:
    with pytest.raises(RunError, match="no honest one does"):
        remember_submission(tmp_path / "kit", number, {})
    assert list(tmp_path.rglob("*")) == []
