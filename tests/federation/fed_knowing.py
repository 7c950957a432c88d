# SPDX-License-Identifier: Apache-2.0
"""Three sites that know something, as FLARE's workspaces have them; what they know is for a subclass."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import yaml
from fed_quadratic import CURVES

from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site
from medflare.knowledge.cohort_texts import knowledge_texts
from medflare.knowledge.site_graph import site_graph

SITES = tuple(sorted(CURVES))


class KnowingHospitals:
    """Folders with questions and a key that all sites share, the same in every run of the tests.

    Attributes:
        knowledge: block of that name in every site.yaml. policy: what its block of rules says.
    """

    knowledge: ClassVar[dict[str, Any]]
    policy: ClassVar[dict[str, Any]] = {}

    def __init__(self, root: Path) -> None:
        self.root, self.secret = root, bytes(range(32)).hex()
        for site in SITES:
            self.folder(site).mkdir(parents=True, exist_ok=True)
            self.write(site)

    def folder(self, site: str) -> Path:
        return self.root / site / "local"

    def ask(self, site: str, questions: list[str]) -> None:
        """The lines of a site's file of questions."""
        (self.folder(site) / "questions.jsonl").write_text("\n".join(questions) + "\n", encoding="utf-8")

    def write(self, site: str, secret: str = "", knowledge: bool = True, **policy: Any) -> None:
        """A site's site.yaml and key."""
        folder = self.folder(site)
        (folder / "key").write_text(secret or self.secret, encoding="ascii")
        settings: dict[str, Any] = {
            "name": site,
            "cohort": {"format": "questions_jsonl", "root": ".", "split": {"train": 1, "val": 0, "test": 0}},
            "policy": {**self.policy, **policy},
        }
        if knowledge:
            settings["knowledge"] = {**self.knowledge, "key": "key"}
        (folder / "site.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def settings(self, site: str) -> Any:
        return load_site(self.folder(site) / "site.yaml", site)

    def graph(self, site: str) -> Any:
        settings = self.settings(site)
        return site_graph(settings.knowledge, knowledge_texts(load_cohort(settings)))
