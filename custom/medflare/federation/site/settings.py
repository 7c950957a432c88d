# SPDX-License-Identifier: Apache-2.0
"""Settings of a job's executor: what a job asks of a site's worker."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveFloat

from medflare.core.config import Settings
from medflare.protocol.strict_model import PROTECTION


class ExecutorSettings(Settings):
    """`args` of the executor in config_fed_client.json.

    `settings` belongs to the method and is validated by the method's own settings class at the site.
    """

    job: str = Field("", max_length=200)
    """Name of the job, which is signed here; FLARE's meta.json says what the server calls it."""
    method: str
    """Name of a method, as `medflare methods` lists them."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Of the method, below; the method's own class checks them at the site."""
    protection: str = Field("none", pattern=PROTECTION)
    """As the controller's: a server that asks for another one than the job was submitted with is refused.

    That it exists here is checked at the first request, when the policy has said which packages are admitted.
    """
    worker: Literal["process", "thread"] = "process"
    """The learner runs in a process of its own, or for tests in a thread of FLARE's."""
    resumes: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,127})?$")
    """Name of the run that this job goes on with, as the controller's."""
    deadline: PositiveFloat = 86400.0
    """The site's own limit for one task in seconds; the server's limit counts too, the smaller one wins."""
