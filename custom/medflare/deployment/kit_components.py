# SPDX-License-Identifier: Apache-2.0
"""Components of a kit's own `local/resources.json`. No job can name them: they are not in the allow-list.

FLARE builds them before anything else it does, with the kit's folder as working directory; relative folders
are therefore the kit's, wherever it was unpacked or mounted.
"""

from __future__ import annotations

import os
from pathlib import Path

from medflare.federation.engine import FilesystemStorage, FLComponent, SimpleJobDefManager

SECURE_LOGGING = "NVFLARE_SECURE_LOGGING"


class SecureLogging(FLComponent):
    """Make FLARE name only an exception's type, in logs and in what it answers to the server.

    FLARE reads this from the environment, and a kit's start scripts are signed and cannot carry a variable.
    Job processes inherit the environment of the process that builds this.
    """

    def __init__(self) -> None:
        super().__init__()
        os.environ[SECURE_LOGGING] = "true"


class KitStorage(FilesystemStorage):
    """FLARE's storage in files, in a folder of the kit: its own default is /tmp."""

    def __init__(self, root_dir: str, uri_root: str = "/") -> None:
        super().__init__(root_dir=str(Path(root_dir).resolve()), uri_root=uri_root)


class KitJobManager(SimpleJobDefManager):
    """FLARE's job manager with its job store in a folder of the kit."""

    def __init__(self, uri_root: str = "store/jobs", job_store_id: str = "job_store") -> None:
        super().__init__(uri_root=str(Path(uri_root).resolve()), job_store_id=job_store_id)
