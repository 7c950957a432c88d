# SPDX-License-Identifier: Apache-2.0
"""Method and settings of the running job as its submitter wrote them, from the server's copy of the job.

A site's own copy may differ in one way: FLARE puts environment variables and folders of that site where a
configuration says `{$NAME}` or `{NAME}`. The server therefore sends a digest of what was submitted, and a
site whose copy has another one answers nothing; and nothing of a site's copy is sent back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError
from medflare.learners.registry import known_method
from medflare.protocol.nested_settings import unmarked
from medflare.wire.digest import json_digest

FILE = "config_fed_client.json"


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """Method and settings that the sites of a job train.

    Attributes:
        settings: of the method, as submitted.
    """

    method: str
    settings: dict[str, Any]

    @property
    def digest(self) -> str:
        """The sha256 by which a site knows that its copy is the submitted one."""
        return settings_digest(self.method, self.settings)

    def resolved(self) -> dict[str, Any]:
        """Return the settings with the method's defaults, presets and variant, as JSON types.

        Raises:
            ConfigError: the method does not take them.
        """
        method = known_method(self.method)
        return method.resolve(self.settings).model_dump(mode="json") if method else dict(self.settings)


def settings_digest(method: str, settings: dict[str, Any]) -> str:
    """Return the digest of a job's method and settings, the same at server and sites."""
    return json_digest({"method": method, "settings": settings})


def read_submitted(folder: Path) -> SubmittedJob:
    """Return the job in a folder of configuration files, without any substitution by FLARE.

    Raises:
        ConfigError: it holds no executor of medflare.
    """
    file = folder / FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        args = unmarked(content["executors"][0]["executor"]["args"])
        return SubmittedJob(str(args["method"]), dict(args.get("settings") or {}))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"{file.name} of the job cannot be read at the server ({type(error).__name__}). It needs the "
            'same app as the sites: `deploy_map` in meta.json must say ["@ALL"].'
        ) from None
