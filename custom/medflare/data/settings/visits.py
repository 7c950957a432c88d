# SPDX-License-Identifier: Apache-2.0
"""`visits` of a cohort in site.yaml: patients who come several times (FedTAR)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from medflare.core.config import Settings


class VisitConfig(Settings):
    """Settings by which rows become ordered visits of patients (docs/how-to/patients-with-visits.md)."""

    order: Literal["day", "visit", "file"] = Field(
        default="day",
        description="what orders a patient's visits: their days (or dates); the source's own visit numbers, "
        "which may have holes where a visit was missed; or the rows of the file",
    )
    most: int | None = Field(
        default=None,
        ge=1,
        description="T: visits beyond this number are not used; without it as many as come",
    )
    fewest: int = Field(default=1, ge=1, description="patients with fewer usable visits take no part")
    same_day: Literal["skip", "merge", "keep"] = Field(
        default="skip",
        description="two rows of a patient on one day: the later one is a fault; or one visit with images "
        "and texts of both, where a row is an image; or two visits, by time of day, else as in the file",
    )
    needs: tuple[Literal["age", "sex"], ...] = Field(
        default=(), description="a patient of whom no visit tells these is a fault"
    )
    covariates: tuple[str, ...] = Field(
        default=(), description="further columns, numbers, that a job may condition on (its `profile`)"
    )
    slices: int | None = Field(
        default=None, ge=1, description="s: a CT volume becomes so many evenly spaced axial slices"
    )
    window: tuple[float, float] | None = Field(
        default=None,
        description="centre and width in the volume's values (Hounsfield); without it its percentiles",
    )

    @model_validator(mode="after")
    def _fits(self) -> VisitConfig:
        if self.most is not None and self.fewest > self.most:
            raise ValueError(f"fewest is {self.fewest} and most is {self.most}; no patient can have both")
        if self.window is not None and self.slices is None:
            raise ValueError("window is for volumes; say into how many `slices` they are cut")
        if self.window is not None and self.window[1] <= 0:
            raise ValueError(
                f"window is centre and width; the width must be above 0, found {self.window[1]:g}"
            )
        return self
