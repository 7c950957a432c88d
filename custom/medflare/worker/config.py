# SPDX-License-Identifier: Apache-2.0
"""Configuration of a worker process, and paths of the site's files that survive a restart."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from medflare.core.errors import MedflareError
from medflare.data.settings.cohort import SplitConfig
from medflare.data.settings.site import SiteConfig, load_site
from medflare.egress.failures import SiteSettingsError

SITE_FILE = "site.yaml"
RESIDUAL = "residual.safetensors"
LOCAL_STATE = "local_state.safetensors"
PRIVACY = "privacy"
"""Folder of the site's book of privacy spending, beside those of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of a worker before its first task; JSON types only.

    Attributes:
        site_file: the site's own site.yaml.
        state_folder: where the local state survives restarts, unless the site's setting `state` names a
            folder.
        run_id: local state of another run is never restored.
        privacy_folder: where the site counts what its patients have spent, over all jobs.
        split: where every record belongs whose source names no split; None for the shares in site.yaml.
    """

    method: str
    settings: dict[str, Any]
    seed: int
    site: str
    site_file: str
    state_folder: str
    cache_folder: str
    run_id: str
    privacy_folder: str = ""
    split: Literal["train", "val", "test"] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in JSON types, as the message to a worker process carries them."""
        return asdict(self)


def load_site_settings(config: WorkerConfig) -> SiteConfig:
    """Return the site's settings from its site.yaml.

    Raises:
        SiteSettingsError: the file cannot be used. What it says stays at the site; the server learns the code
        only.
    """
    try:
        site = load_site(Path(config.site_file), config.site)
    except MedflareError as error:
        raise SiteSettingsError(str(error)) from error
    if config.split is None:
        return site
    all_in_one = SplitConfig.model_validate({"train": 0, "val": 0, "test": 0, config.split: 1})
    return site.model_copy(
        update={"cohort": tuple(c.model_copy(update={"split": all_in_one}) for c in site.cohort)}
    )


def site_file(root: Path, local: Path) -> Path:
    """Return the path of the site's site.yaml.

    The simulator copies one `local/` to every site. Where the copy equals the original, the original is
    returned, so that relative folders in it mean the same for all sites.

    Args:
        root: the site's workspace.
        local: the `local` folder in it.
    """
    copy, original = local / SITE_FILE, root.parent / "local" / SITE_FILE
    if copy.exists() and original.exists() and copy.read_bytes() == original.read_bytes():
        return original
    return copy


def state_folder(config: WorkerConfig, site: SiteConfig) -> Path:
    """Return the folder of what survives a restart: the site's choice, else FLARE's workspace."""
    return site.state / config.run_id if site.state else Path(config.state_folder)


def privacy_folder(config: WorkerConfig) -> Path:
    """Return the folder of the site's book of privacy spending."""
    return Path(config.privacy_folder or Path(config.state_folder).parent / PRIVACY)


def residual_file(config: WorkerConfig) -> Path:
    """Return the file in which the site keeps what compression lost, beside its local state."""
    return state_folder(config, load_site_settings(config)) / RESIDUAL
