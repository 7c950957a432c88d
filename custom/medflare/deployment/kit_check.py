# SPDX-License-Identifier: Apache-2.0
"""Checks a startup kit: whether it is hardened, unchanged since it was signed, and its certificate valid.

A hospital runs it (`medflare kits check <kit>`) before the first start and after each change of `local/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from medflare.core.errors import ConfigError
from medflare.deployment.hardening import HardenedSetting, pending, short
from medflare.deployment.kit_settings import MOVED_CLASSES
from medflare.deployment.kits import Kit, effective, find_kits
from medflare.federation.engine import LoadResult, SecurityContentManager
from medflare.recipes.flare_traps import class_paths
from medflare.secure_aggregation.certificates import check_certificate, read_certificates

SIGNATURES = "signature.json"
EXTRA_RESOURCES = ("*__resources.json", "*__p_resources.json", "*__j_resources.json", "job_resources.json")
"""Files that FLARE reads beside resources.json, each of which may add components."""
UNPUBLISHED = {
    "format_version",
    "client",
    "servers",
    "components",
    "handlers",
    "class_allow_list",
    "class_list_enforcement_mode",
    "snapshot_persistor",
    "admin",
    "relay_config",
    "allow_log_streaming",
}
"""Top-level keys of resources.json that may be there; FLARE sends any other to all sites."""
EXPIRES_SOON = timedelta(days=30)
HARDEN = "Run: medflare kits harden <kit>"
NEW_KIT = "Do not start this kit; ask the coordinating centre for a new one"
_SIGNATURE = {
    LoadResult.INVALID_SIGNATURE: "was changed after it was signed",
    LoadResult.NO_SUCH_CONTENT: "was signed, and is gone or empty",
    LoadResult.NOT_SIGNED: "is not signed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something wrong in a kit: the file, what was found there, what to do."""

    path: Path
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.found}. {self.remedy}"


def check(kits: Path, moment: datetime | None = None, authority: str = "") -> list[Finding]:
    """Return everything wrong in the kits of a folder; write nothing.

    Args:
        moment: the time certificates must be valid at; now if left out.
        authority: expected fingerprint of the root certificate, `SHA256:AB:CD:...` or as openssl prints it;
            not compared when empty.

    Raises:
        ConfigError: there is no kit, or one lacks a file.
    """
    now = moment or datetime.now(UTC)
    findings = [Finding(path=change.path, found=_words(change), remedy=HARDEN) for change in pending(kits)]
    for kit in find_kits(kits):
        findings += [*_tampered(kit), *_added(kit), *_moved(kit), *_certificate(kit, now, authority)]
    return findings


def authorities(kits: Path) -> list[str]:
    """Return the fingerprints of the root certificates in a folder; one if all kits are of one project."""
    roots = (read_certificates(kit.startup / "rootCA.pem")[0] for kit in find_kits(kits))
    return sorted({fingerprint(root) for root in roots})


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate as `nvflare cert` and `openssl x509 -fingerprint` write it."""
    return "SHA256:" + certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def _words(change: HardenedSetting) -> str:
    key = f"{change.key} is" if change.key else "is"
    before = "absent" if change.before is None else short(change.before)
    return f"{key} {before}, expected {short(change.after)}"


def _tampered(kit: Kit) -> Iterator[Finding]:
    """Yield files of `startup/` that differ from what the coordinating centre signed, or were never signed.

    FLARE itself looks at the JSON files alone, and only where signature.json is there. Start scripts may be
    gone: `nvflare deploy prepare` removes them.
    """
    manager = SecurityContentManager(str(kit.startup))
    if not manager.valid_config:
        if any(kit.startup.glob("*.tenseal")):
            problem = "is missing, although kits with a key for encryption are always signed"
            yield Finding(path=kit.startup / SIGNATURES, found=problem, remedy=NEW_KIT)
        return
    present = {path.name for path in kit.startup.iterdir() if path.is_file() and path.name != SIGNATURES}
    for name in sorted(present | {name for name in manager.signature if not name.endswith(".sh")}):
        _, result = manager.load_content(name)
        if result != LoadResult.OK:
            yield Finding(path=kit.startup / name, found=_SIGNATURE[result], remedy=NEW_KIT)


def _added(kit: Kit) -> Iterator[Finding]:
    """Yield settings beside the hardened ones that would add components or be sent to other sites."""
    if kit.role == "admin":
        return
    extra = "FLARE would read it beside resources.json and build its components"
    for path in (path for name in EXTRA_RESOURCES for path in kit.local.glob(name)):
        yield Finding(path=path, found=extra, remedy="Move what you need into resources.json")
    path = kit.local / "resources.json"
    for key in sorted(set(effective(kit, "resources.json")) - UNPUBLISHED):
        problem = f"the key {key} would be sent to every other site"
        yield Finding(path=path, found=problem, remedy="Keep settings of your own in site.yaml")


def _moved(kit: Kit) -> Iterator[Finding]:
    """Yield the class paths of an earlier release: FLARE would refuse every job, or not start at all."""
    if kit.role == "admin":
        return
    path = kit.local / "resources.json"
    resources = effective(kit, "resources.json")
    named = {*resources.get("class_allow_list", []), *class_paths(resources)}
    for old in sorted(named & set(MOVED_CLASSES)):
        yield Finding(path=path, found=f"names {old}, which has moved to {MOVED_CLASSES[old]}", remedy=HARDEN)


def _certificate(kit: Kit, moment: datetime, authority: str) -> Iterator[Finding]:
    """Check the certificate: this participant's, of this project's authority, valid, and of its key."""
    name = "server" if kit.role == "server" else "client"
    path, key, root_path = (kit.startup / file for file in (f"{name}.crt", f"{name}.key", "rootCA.pem"))
    try:
        chain, root = read_certificates(path), read_certificates(root_path)[0]
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (ConfigError, OSError, ValueError) as error:
        yield Finding(path=key, found=f"certificate or key cannot be read ({error})", remedy=NEW_KIT)
        return
    until = min(chain[0].not_valid_after_utc, root.not_valid_after_utc)
    if reason := check_certificate(chain, root, kit.name, moment):
        yield Finding(path=path, found=reason, remedy=NEW_KIT)
    elif moment > until - EXPIRES_SOON:
        yield Finding(path=path, found=f"expires on {until:%Y-%m-%d}", remedy=f"{NEW_KIT} before that day")
    if private.public_key() != chain[0].public_key():
        yield Finding(path=key, found="is not the key of the certificate beside it", remedy=NEW_KIT)
    if (
        authority
        and fingerprint(root) != f"SHA256:{authority.upper().rpartition('=')[2].removeprefix('SHA256:')}"
    ):
        problem = f"has the fingerprint {fingerprint(root)}, expected {authority}"
        yield Finding(path=root_path, found=problem, remedy=NEW_KIT)
