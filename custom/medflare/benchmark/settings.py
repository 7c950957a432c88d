# SPDX-License-Identifier: Apache-2.0
"""Settings of a benchmark of federated report generation: `medflare benchmark fl-mrg` (BM-1 to BM-8)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from medflare.core.config import Settings
from medflare.core.idle_settings import idle_if

Setting = Literal["random", "cluster", "dirichlet", "real-world", "fedvit-gpt2", "longitudinal"]
SETTINGS: tuple[Setting, ...] = (
    "random",
    "cluster",
    "dirichlet",
    "real-world",
    "fedvit-gpt2",
    "longitudinal",
)
REAL_WORLD_SITES = 3
"""Clients of each source in the real-world setting."""
IU_SHARES = (0.4, 0.3, 0.2, 0.1)
"""FedViT-GPT2's clients."""
IU_IMAGES = {"train": 4138, "val": 592, "test": 1180}
"""FedViT-GPT2's images, R2Gen's split of IU X-Ray."""


class BenchmarkSettings(Settings):
    """One benchmark.

    Attributes:
        clients: sites; 6 in `real-world`, 4 in `fedvit-gpt2`.
        alpha: of `dirichlet`.
        client_images: fewest and most images of a client of `dirichlet`.
        pairs: images taken of each source in `real-world`.
        fewest_words: of the findings, in `real-world`; 1 in the other settings.
        fewest_visits: of a patient, in `longitudinal`.
        scanners: whether each client has a blur, contrast and brightness of its own.
    """

    setting: Setting
    mimic_cxr: Path | None = None
    reports: Path | None = None
    iu_xray: Path | None = None
    chexpert_plus: Path | None = None
    demographics: Path | None = None
    clients: int = Field(default=10, ge=2, le=10)
    alpha: float = Field(default=0.5, ge=0.1, le=0.9)
    client_images: tuple[PositiveInt, PositiveInt] = (4000, 7000)
    pairs: int = Field(default=55_000, ge=1)
    fewest_words: int = Field(default=20, ge=1)
    fewest_visits: int = Field(default=2, ge=2)
    scanners: bool = True
    seed: NonNegativeInt = 0

    @property
    def without_effect(self) -> dict[str, str]:
        chosen = f"setting is '{self.setting}'"
        return idle_if(
            (self.setting != "dirichlet", chosen, "alpha client_images"),
            (self.setting != "real-world", chosen, "pairs fewest_words"),
            (self.setting != "longitudinal", chosen, "demographics fewest_visits"),
            (self.setting in ("real-world", "fedvit-gpt2"), f"{chosen}, whose clients are given", "clients"),
        )

    @model_validator(mode="after")
    def _roots(self) -> BenchmarkSettings:
        needed = {
            "real-world": ("mimic_cxr", "chexpert_plus", "iu_xray"),
            "fedvit-gpt2": ("iu_xray",),
            "longitudinal": ("mimic_cxr",),
        }.get(self.setting, ("mimic_cxr", "iu_xray"))
        given = {name: getattr(self, name) for name in ("mimic_cxr", "iu_xray", "chexpert_plus")}
        if missing := [f"--{name.replace('_', '-')}" for name in needed if given[name] is None]:
            raise ValueError(f"--setting {self.setting} needs {' and '.join(missing)}")
        low, high = self.client_images
        if not 0 < low <= high:
            raise ValueError(f"--client-images {low} {high}: expected two numbers, the smaller one first")
        return self

    @property
    def words(self) -> int:
        """Fewest words of the findings that count."""
        return self.fewest_words if self.setting == "real-world" else 1

    def used_sources(self) -> dict[str, Path]:
        """Return the sources that this setting reads, with their roots."""
        roots = {"mimic_cxr": self.mimic_cxr, "chexpert_plus": self.chexpert_plus, "iu_xray": self.iu_xray}
        unused = {
            "real-world": (),
            "fedvit-gpt2": ("mimic_cxr", "chexpert_plus"),
            "longitudinal": ("chexpert_plus", "iu_xray"),
        }.get(self.setting, ("chexpert_plus",))
        return {name: root for name, root in roots.items() if root is not None and name not in unused}
