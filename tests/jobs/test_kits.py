# SPDX-License-Identifier: Apache-2.0
"""What `medflare kits harden` makes of freshly provisioned kits, and what `medflare kits check` notices."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kit_folders import SITES, TEMPLATES, local, mode, provision
from nvflare.app_common.job_schedulers.job_scheduler import DefaultJobScheduler
from typer.testing import CliRunner

from medflare.cli.main import app
from medflare.core.errors import ConfigError
from medflare.data.settings.site import load_site
from medflare.deployment.handover import write_handovers
from medflare.deployment.hardening import harden, pending
from medflare.deployment.kit_advice import advice
from medflare.deployment.kit_check import Finding, check, fingerprint
from medflare.deployment.kit_settings import MOVED_CLASSES, kit_classes
from medflare.deployment.kit_templates import template_files
from medflare.deployment.kits import as_kit, find_kits
from medflare.federation.engine import DEFAULT_CLASS_ALLOW_LIST
from medflare.recipes.allow_list import COMPONENTS, allowed_classes
from medflare.secure_aggregation.certificates import read_certificates

RUNNER = CliRunner()
GUARDED = ("flserver", *SITES)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits as FLARE leaves them."""
    workspace = tmp_path_factory.mktemp("plain")
    provision(workspace)
    return workspace


@pytest.fixture(scope="module")
def hardened(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("hardened") / "kits"
    shutil.copytree(plain, workspace)
    harden(workspace)
    return workspace


@pytest.fixture
def kits(hardened: Path, tmp_path: Path) -> Path:
    """A copy of the hardened kits that a test may spoil."""
    shutil.copytree(hardened, tmp_path / "kits")
    return tmp_path / "kits" / "medflare" / "prod_00"


def found(findings: list[Finding]) -> dict[str, str]:
    return {f"{item.path.parent.name}/{item.path.name}": item.found for item in findings}


# ---- hardening ---------------------------------------------------------------------------------------------


def test_every_kit_of_flare_needs_hardening_and_a_hardened_one_does_not(plain: Path, hardened: Path) -> None:
    waiting = {change.path.parts[change.path.parts.index("prod_00") + 1] for change in pending(plain)
               if "prod_00" in change.path.parts}  # fmt: skip
    assert waiting == {kit.name for kit in find_kits(plain)}
    assert pending(hardened) == []
    assert harden(hardened) == []


@pytest.mark.parametrize("name", GUARDED)
def test_a_job_may_name_our_components_and_nothing_else(hardened: Path, name: str) -> None:
    resources = local(hardened / "medflare/prod_00" / name, "resources.json")
    assert resources["class_allow_list"] == [f"{kind.__module__}.{kind.__name__}" for kind in COMPONENTS]
    assert resources["class_list_enforcement_mode"] == "enforce"


def test_the_list_holds_classes_and_no_prefix() -> None:
    assert set(kit_classes()) == set(allowed_classes()) - set(DEFAULT_CLASS_ALLOW_LIST)
    assert not [
        entry for entry in kit_classes() if entry.endswith(".") or not entry.split(".")[-1][0].isupper()
    ]


@pytest.mark.parametrize("name", GUARDED)
def test_no_role_brings_code_or_reads_files_by_shell_command(hardened: Path, name: str) -> None:
    roles = local(hardened / "medflare/prod_00" / name, "authorization.json")["permissions"]
    assert set(roles) == {"project_admin", "org_admin", "lead", "member"}
    assert {(rights["byoc"], rights["shell_commands"]) for rights in roles.values()} == {("none", "none")}


def test_lead_and_project_admin_submit_and_the_others_do_not(hardened: Path) -> None:
    roles = local(hardened / "medflare/prod_00/site-1", "authorization.json")["permissions"]
    allowed = {role: rights.get("submit_job", "none") for role, rights in roles.items()}
    assert allowed == {"project_admin": "any", "lead": "any", "org_admin": "none", "member": "none"}


@pytest.mark.parametrize("name", GUARDED)
def test_no_logs_are_sent_or_received(hardened: Path, name: str) -> None:
    resources = local(hardened / "medflare/prod_00" / name, "resources.json")
    assert not [part for part in resources["components"] if "log" in part["path"].lower().split(".")[-2]]
    assert resources.get("allow_log_streaming", False) is False


def test_a_dead_site_is_noticed_within_a_minute(hardened: Path) -> None:
    (server,) = local(hardened / "medflare/prod_00/flserver", "resources.json")["servers"]
    assert 30 <= server["heart_beat_timeout"] <= 60


def test_a_job_waits_a_day_for_its_sites_and_no_longer_than_minutes_once_they_are_there(
    hardened: Path,
) -> None:
    """By itself FLARE gives up after 40 minutes: a job of the evening met no hospital of the morning."""
    resources = local(hardened / "medflare/prod_00/flserver", "resources.json")
    (part,) = [part for part in resources["components"] if part["id"] == "job_scheduler"]
    scheduler = DefaultJobScheduler(**part["args"])
    longest, first = scheduler.max_schedule_interval, scheduler.min_schedule_interval
    pauses = [min(longest, first * 2**n) for n in range(scheduler.max_schedule_count)]
    assert 23 * 3600 < sum(pauses) < 25 * 3600
    assert max(pauses) == 300


def test_a_site_asks_for_work_again_within_a_minute(hardened: Path) -> None:
    client = local(hardened / "medflare/prod_00/site-1", "resources.json")["client"]
    assert client["communication_timeout"] == 60


def test_nothing_of_the_server_is_stored_in_tmp(hardened: Path) -> None:
    text = (hardened / "medflare/prod_00/flserver/local/resources.json").read_text()
    assert "/tmp" not in text
    assert "store/jobs" in text
    assert "store/snapshots" in text


def test_keys_are_for_their_owner_only(hardened: Path) -> None:
    folder = hardened / "medflare"
    keys = [*folder.rglob("*.key"), *folder.rglob("*.tenseal"), folder / "state/cert.json"]
    assert len(keys) == 9 + 5 + 1
    assert {mode(key) for key in keys} == {"0600"}
    assert {mode(key.parent) for key in keys} == {"0700"}


def test_hardening_touches_nothing_that_is_signed(plain: Path, hardened: Path) -> None:
    for path in plain.glob("medflare/prod_00/*/startup/*"):
        assert (hardened / path.relative_to(plain)).read_bytes() == path.read_bytes()


def test_what_the_site_wrote_itself_survives(kits: Path) -> None:
    site = kits / "site-1" / "local"
    (site / "site.yaml").write_text("cohort: {format: manifest, root: /mnt/x-rays}\n")
    resources, roles = (local(kits / "site-1", name) for name in ("resources.json", "authorization.json"))
    resources["components"][0]["args"]["num_of_gpus"] = 2
    resources["class_allow_list"].append("subprocess.Popen")
    roles["permissions"]["lead"] |= {"submit_job": "none", "byoc": "any"}
    (site / "resources.json").write_text(json.dumps(resources))
    (site / "authorization.json").write_text(json.dumps(roles))
    changes = {change.key for change in harden(kits)}
    assert changes == {"class_allow_list", "permissions.lead.byoc"}
    assert "/mnt/x-rays" in (site / "site.yaml").read_text()
    assert local(kits / "site-1", "resources.json")["components"][0]["args"]["num_of_gpus"] == 2
    assert local(kits / "site-1", "authorization.json")["permissions"]["lead"]["submit_job"] == "none"


def test_the_site_file_that_a_hospital_starts_from_is_valid(hardened: Path) -> None:
    kit = hardened / "medflare/prod_00/site-3"
    site = load_site(kit / "local/site.yaml", "site-3")
    assert site.cohort[0].root == (kit / "local/../cohort")
    assert site.state == kit / "local/../state"


def test_one_kit_alone_can_be_hardened(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain / "medflare/prod_00/site-2", tmp_path / "unpacked")
    assert harden(tmp_path / "unpacked")
    assert check(tmp_path / "unpacked") == []
    assert as_kit(tmp_path / "unpacked").name == "site-2"


def test_the_templates_are_what_a_fresh_hardened_kit_holds(hardened: Path) -> None:
    for role, name in (("server", "flserver"), ("site", "site-1")):
        wanted = template_files(as_kit(hardened / "medflare/prod_00" / name))
        there = {path.name: path.read_text() for path in (TEMPLATES / role / "local").iterdir()}
        assert there == wanted, "run: python -m medflare.deployment.kit_templates"


def test_every_setting_of_a_template_is_explained() -> None:
    for role in ("server", "site"):
        explained = (TEMPLATES / role / "README.md").read_text()
        for name in ("resources.json", "authorization.json", "privacy.json", "log_config.json"):
            document = json.loads((TEMPLATES / role / "local" / name).read_text())
            keys = [*document, *(part["id"] for part in document.get("components", []))]
            assert [key for key in keys if f"`{key}`" not in explained] == []


# ---- check -------------------------------------------------------------------------------------------------


def test_check_says_what_is_not_hardened_and_ends_with_1(plain: Path, hardened: Path) -> None:
    loose = RUNNER.invoke(app, ["kits", "check", str(plain)])
    assert loose.exit_code == 1
    assert "permissions.lead.byoc is any, expected none" in loose.output
    tight = RUNNER.invoke(app, ["kits", "check", str(hardened)])
    assert tight.exit_code == 0
    assert "hardened, untouched, certificates valid\nauthority SHA256:" in tight.output


def test_a_server_that_is_this_machine_and_a_site_without_a_policy_are_warnings(kits: Path) -> None:
    listed = json.loads(RUNNER.invoke(app, ["kits", "check", str(kits), "--json"]).output)
    assert {row["level"] for row in listed} == {"warning"}
    rows = {Path(row["file"]).relative_to(kits).as_posix(): row["found"] for row in listed}
    assert set(rows) == {
        f"{site}/{file}" for site in SITES for file in ("startup/fed_client.json", "local/site.yaml")
    }
    assert "address is localhost" in rows["site-1/startup/fed_client.json"]
    site_file = kits / "site-1/local/site.yaml"
    site_file.write_text(site_file.read_text() + "\npolicy: {min_sites: 3}\n")
    client = kits / "site-1/startup/fed_client.json"
    client.write_text(client.read_text().replace("localhost", "fl.example.org"))
    assert [str(f.path) for f in advice(kits) if "site-1" in str(f.path)] == []


# ---- handover ----------------------------------------------------------------------------------------------


def test_every_hospital_gets_a_page_with_its_own_facts(kits: Path) -> None:
    files, _ = write_handovers(kits, moment=datetime(2026, 11, 24, tzinfo=UTC), overwrite=True)
    assert {file.parent.name for file in files} == set(SITES)
    root = read_certificates(kits / "site-1/startup/rootCA.pem")[0]
    text = (kits / "site-1/HANDOVER.md").read_text()
    for fact in (
        "**site-1**",
        "localhost:",
        fingerprint(root),
        "admin@coordinator.org",
        "2026-11-24",
        "egress report",
    ):
        assert fact in text
    assert "$" not in text
    assert check(kits) == []


def test_a_page_names_who_is_to_be_called_or_that_nobody_is(kits: Path) -> None:
    (file,), _ = write_handovers(kits / "site-2", overwrite=True)
    assert "nobody is named" in file.read_text()
    file.write_text("completed by hand")
    command = ["kits", "handover", str(kits / "site-2"), "--contact", "Dr Weber, +49 30 1234"]
    output = RUNNER.invoke(app, command)
    assert output.exit_code == 0
    assert "was left as it is; --overwrite writes it anew" in " ".join(output.output.split())
    assert file.read_text() == "completed by hand"
    assert RUNNER.invoke(app, [*command, "--overwrite"]).exit_code == 0
    assert "Dr Weber, +49 30 1234" in file.read_text()
    with pytest.raises(ConfigError, match="no kit of a site"):
        write_handovers(kits / "flserver")


@pytest.mark.parametrize("name", ["fed_client.json", "start.sh", "sub_start.sh", "client_context.tenseal"])
def test_an_edited_startup_file_is_named(kits: Path, name: str) -> None:
    path = kits / "site-1" / "startup" / name
    path.write_bytes(path.read_bytes() + b" ")
    assert found(check(kits)) == {f"startup/{name}": "was changed after it was signed"}


def test_a_planted_a_missing_and_an_unsigned_kit_are_named(kits: Path) -> None:
    (kits / "site-1/startup/evil__resources.json").write_text("{}")
    (kits / "site-2/startup/client_context.tenseal").unlink()
    (kits / "site-3/startup/signature.json").unlink()
    findings = found(check(kits))
    assert findings["startup/evil__resources.json"] == "is not signed"
    assert findings["startup/client_context.tenseal"] == "was signed, and is gone or empty"
    assert findings["startup/signature.json"].startswith("is missing, although")
    assert len(findings) == 3


def test_a_key_of_another_site_is_named(kits: Path) -> None:
    shutil.copy(kits / "site-2/startup/client.key", kits / "site-1/startup/client.key")
    assert found(check(kits)) == {"startup/client.key": "is not the key of the certificate beside it"}


def test_a_certificate_of_another_authority_is_named(kits: Path, tmp_path: Path) -> None:
    foreign = provision(tmp_path / "foreign") / "site-1/startup"
    for name in ("client.crt", "client.key"):
        shutil.copy(foreign / name, kits / "site-1/startup" / name)
    findings = found(check(kits / "site-1"))
    assert "was not issued by this project's authority" in findings["startup/client.crt"]


def test_a_whole_foreign_kit_shows_by_its_fingerprint(kits: Path, tmp_path: Path) -> None:
    ours = fingerprint(read_certificates(kits / "site-1/startup/rootCA.pem")[0])
    assert check(kits, authority=ours) == []
    assert check(kits, authority=ours.replace("SHA256:", "sha256 Fingerprint=")) == []
    foreign = provision(tmp_path / "foreign") / "site-1"
    harden(foreign)
    assert check(foreign) == []
    assert f"expected {ours}" in found(check(foreign, authority=ours))["startup/rootCA.pem"]


@pytest.mark.parametrize(("days", "message"), [(329, ""), (331, "expires on "), (361, "expired on ")])
def test_the_end_of_a_certificate_is_told_thirty_days_ahead(kits: Path, days: int, message: str) -> None:
    findings = check(kits / "site-1", moment=datetime.now(UTC) + timedelta(days=days))
    assert [message in finding.found for finding in findings] == [True] * bool(message)


def test_settings_that_would_travel_or_add_components_are_named(kits: Path) -> None:
    path = kits / "site-1/local/resources.json"
    path.write_text(json.dumps(local(kits / "site-1", "resources.json") | {"data_path": "/secret"}))
    (kits / "site-2/local/more__p_resources.json").write_text("{}")
    findings = found(check(kits))
    assert findings["local/resources.json"] == "the key data_path would be sent to every other site"
    assert "build its components" in findings["local/more__p_resources.json"]


@pytest.mark.parametrize("name", ["flserver", "site-1"])
def test_class_paths_of_an_earlier_release_are_named_and_hardened_away(kits: Path, name: str) -> None:
    path = kits / name / "local" / "resources.json"
    present, text = {new: old for old, new in MOVED_CLASSES.items()}, path.read_text()
    before = {old for new, old in present.items() if f'"{new}"' in text}
    assert len(before) >= 8, "job classes, and components of the kit"
    for new, old in present.items():
        text = text.replace(f'"{new}"', f'"{old}"')
    path.write_text(text)
    findings = [str(item) for item in check(kits) if "has moved to" in item.found]
    assert len(findings) == len(before)
    for old in before:
        assert any(
            f"names {old}, which has moved to {MOVED_CLASSES[old]}. Run: " in said for said in findings
        )
    harden(kits)
    assert check(kits) == []


def test_the_changelog_names_every_class_that_moved() -> None:
    changelog = (TEMPLATES.parent / "CHANGELOG.md").read_text()
    for old, new in MOVED_CLASSES.items():
        assert f"| `{old}` | `{new}` |" in changelog


def test_a_folder_without_kits_is_an_error_that_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no startup kit in it; expected the folder"):
        harden(tmp_path)
