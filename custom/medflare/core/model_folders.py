# SPDX-License-Identifier: Apache-2.0
"""Folders of the language models that `medflare models add` put on this machine, by name."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from medflare.core.errors import ConfigError

VARIABLE = "MEDFLARE_MODELS"
FACTS_FILE = "medflare_model.json"
"""In the folder of each model: where it is from, and what it was measured to be."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def models_root() -> Path:
    """Return the folder of all models: MEDFLARE_MODELS, or medflare/models in the user's data folder."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "medflare" / "models"


def check_model_name(name: str) -> str:
    """Return a name that may be a folder's; ConfigError for any other."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"model name '{name[:80]}': expected small letters, digits, '.', '_' and '-', beginning with a "
            "letter or digit, at most 64."
        )
    return name


def stored_models() -> list[str]:
    """Return the names of the models on this machine, sorted."""
    root = models_root()
    return sorted(file.parent.name for file in root.glob(f"*/{FACTS_FILE}")) if root.is_dir() else []


def stored_model(name: str) -> Path:
    """Return the folder of a model on this machine.

    Raises:
        ConfigError: there is none of this name; those that are there are listed.
    """
    folder = models_root() / check_model_name(name)
    if not (folder / FACTS_FILE).is_file():
        known = ", ".join(stored_models()) or "none"
        raise ConfigError(
            f"there is no model '{name}' on this machine; there is: {known}. Add it with 'medflare models "
            f"add FILE.gguf --name {name}' ({VARIABLE} names the folder of all models, now {models_root()})."
        )
    return folder


def stored_with(fingerprint: object) -> Path | None:
    """Return the folder of the model on this machine that had this fingerprint when it was added, if any."""
    for name in stored_models():
        folder = models_root() / name
        try:
            facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # `medflare models list` names what is wrong with it
        if isinstance(facts, dict) and facts.get("fingerprint") == fingerprint:
            return folder
    return None


def check_folder(path: Path, setting: str = "backbone.folder") -> None:
    """Raise ConfigError unless a folder with safetensors weights is there; `setting` names it."""
    if not path.is_dir():
        raise ConfigError(
            f"{setting}: there is no folder '{path}'. Copy the model's folder there (no name is looked up on "
            "the internet), or leave it out."
        )
    if not list(path.glob("*.safetensors")):
        raise ConfigError(
            f"{setting}: '{path}' has no *.safetensors file. Pickled weights (.bin) are not loaded; "
            f"convert them with transformers' save_pretrained."
        )
    for file in path.glob("*.safetensors"):
        if not file.exists():
            raise ConfigError(
                f"{setting}: '{file}' links to '{file.readlink()}', which is not there. Put the weights "
                "back, or add the model again from where they are: medflare models add FOLDER --replace."
            )
