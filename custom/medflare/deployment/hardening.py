# SPDX-License-Identifier: Apache-2.0
"""Makes startup kits safe by default after `nvflare provision` or `nvflare package`.

Only `local/` and file modes are touched, because FLARE checks the signatures of `startup/`. Done again, it
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.deployment import kit_settings
from medflare.deployment.kits import SECRETS, Kit, effective, find_kits, read_object
from medflare.wire.durable import write_json

SITE_TEMPLATE = Path(__file__).with_name("kit_site.yaml")
"""The `local/site.yaml` that a hospital starts from."""
_OWNER_ONLY = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class HardenedSetting:
    """A setting or file mode that differs from the hardened one: where, what, its value before and after."""

    path: Path
    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        place = f"{self.path}: {self.key}" if self.key else str(self.path)
        return f"{place}: {short(self.before)} -> {short(self.after)}"


def harden(kits: Path, site_template: Path = SITE_TEMPLATE) -> list[HardenedSetting]:
    """Harden every kit in `kits` and return what was changed; empty where nothing was left to do.

    Args:
        kits: what `nvflare provision -w` wrote, one `prod_NN` folder of it, or one kit.
        site_template: becomes `local/site.yaml` of each hospital that has none yet.

    Raises:
        ConfigError: there is no kit, or a kit lacks a file.
    """
    changes = pending(kits)
    for kit in find_kits(kits):
        _write(kit, site_template)
    for path, mode in _wrong_modes(kits):
        path.chmod(mode)
    return changes


def pending(kits: Path) -> list[HardenedSetting]:
    """Return what `harden` would change; write nothing."""
    changes = [change for kit in find_kits(kits) for change in _settings_changes(kit)]
    modes = [
        HardenedSetting(
            path=path, key="mode", before=f"{path.stat().st_mode & 0o777:04o}", after=f"{mode:04o}"
        )
        for path, mode in _wrong_modes(kits)
    ]
    return changes + modes


def wanted_files(kit: Kit) -> dict[str, dict[str, Any]]:
    """Return, for each file of `local/`, what it must hold in this kit. An administrator's kit holds keys
    only."""
    if kit.role == "admin":
        return {}
    server = kit.role == "server"
    resources = kit_settings.server_resources if server else kit_settings.site_resources
    with_view = (kit_settings.PROGRESS, *([kit_settings.JOB_LOG] if server else []))
    return {
        "resources.json": resources(effective(kit, "resources.json")),
        "authorization.json": kit_settings.authorization(effective(kit, "authorization.json"), with_view),
        "privacy.json": _privacy(kit),
        "log_config.json": kit_settings.log_config(effective(kit, "log_config.json")),
    }


def _privacy(kit: Kit) -> dict[str, Any]:
    """Return the site's own scopes and filters where it has some: they can only make it stricter."""
    path = kit.local / "privacy.json"
    return read_object(path) if path.is_file() else kit_settings.privacy()


def _settings_changes(kit: Kit) -> Iterator[HardenedSetting]:
    for name, wanted in wanted_files(kit).items():
        path = kit.local / name
        before = effective(kit, name) if path.is_file() or _default(path).is_file() else {}
        for key, old, new in _differences(before, wanted):
            yield HardenedSetting(path=path, key=key, before=old, after=new)
    site = kit.local / "site.yaml"
    if kit.role == "site" and not site.exists():
        yield HardenedSetting(path=site, key="", before="absent", after="the template")


def _write(kit: Kit, site_template: Path) -> None:
    for name, wanted in wanted_files(kit).items():
        path = kit.local / name
        if not path.is_file() or read_object(path) != wanted:
            write_json(path, wanted)
    site = kit.local / "site.yaml"
    if kit.role == "site" and not site.exists():
        site.write_text(site_template.read_text(encoding="utf-8"), encoding="utf-8")


def _default(path: Path) -> Path:
    return path.with_name(f"{path.name}.default")


def _differences(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, old, new) of every leaf that differs; a component is named by its id."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from _differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)
    elif _components(before) and _components(after):
        old, new = ({part["id"]: part for part in parts} for parts in (before, after))
        yield from _differences(old, new, key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after) == 1:
        yield from _differences(before[0], after[0], key)
    elif before != after:
        yield key, before, after


def _components(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(p, dict) and "id" in p for p in value)


def _wrong_modes(kits: Path) -> list[tuple[Path, int]]:
    """Return keys that others may read and the folders around them, each with the mode it should have."""
    modes: dict[Path, int] = {}
    for folder in _key_folders(kits):
        modes[folder] = 0o700
        modes.update({path: 0o600 for name in SECRETS for path in folder.glob(name)})
    for kit in find_kits(kits):
        modes.update({folder: 0o700 for folder in (kit.folder, kit.local, kit.startup) if folder.is_dir()})
    return [(path, mode) for path, mode in sorted(modes.items()) if path.stat().st_mode & _OWNER_ONLY]


def _key_folders(kits: Path) -> set[Path]:
    """Return the folders below `kits` that hold a key; a provisioning workspace's `state` is one."""
    return {path.parent for name in SECRETS for path in kits.glob(f"**/{name}")}


def short(value: Any) -> str:
    """Return a setting's value as it is shown in one line."""
    if isinstance(value, list):
        return f"{len(value)} entries"
    if isinstance(value, Mapping):
        return str(value.get("path", f"{len(value)} settings"))
    return "absent" if value is None else str(value)
