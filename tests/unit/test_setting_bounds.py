# SPDX-License-Identifier: Apache-2.0
"""A number in a setting has a bound, so that one no program can work with is named before anything runs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from annotated_types import Ge, Gt, Interval, Le, Lt

import medflare
from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from medflare.federation.site.settings import ExecutorSettings
from medflare.models.adapters.lora import LoraSettings
from medflare.models.report_generator import DecodingSettings

ROOMS = ("core", "data", "federation", "learners", "models", "selection", "tasks")
ANY_NUMBER = {
    "length_penalty",  # below nothing transformers prefers short texts
    "columns",  # names or numbers of a table's columns, which its reader looks for
    "select",  # values that a table may hold
    "latency_profiles",  # read_profiles checks them
    "covariates",  # mean and spread of anything that can be measured of a patient
    "window",  # of Hounsfield units; VisitConfig checks the width
    "normalisation",  # of pixels, as a model's own folder has it
}


def every_settings_class(base: type[Settings] = Settings) -> Iterator[type[Settings]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("medflare."):
            yield kind
        yield from every_settings_class(kind)


def numbers(annotation: Any, bounded: bool = False) -> Iterator[bool]:
    """Whether each int or float inside an annotation has a bound."""
    if annotation in (int, float):
        yield bounded
    metadata = getattr(annotation, "__metadata__", ())
    limited = any(isinstance(item, Ge | Gt | Le | Lt | Interval) for item in flat(metadata))
    for part in get_args(annotation)[: 1 if metadata else None]:
        yield from numbers(part, bounded or limited)


def flat(metadata: Any) -> Iterator[Any]:
    """The constraints of annotations, also those inside a Field."""
    for item in metadata:
        yield item
        yield from getattr(item, "metadata", ())


def test_every_number_has_a_bound() -> None:
    for module in pkgutil.walk_packages(medflare.__path__, "medflare."):
        if module.name.split(".")[1] in (
            "learners",
            "models",
            "core",
            "data",
            "federation",
            "selection",
            "tasks",
        ):
            importlib.import_module(module.name)
    without, seen = [], 0
    for kind in set(every_settings_class()):
        for name, info in kind.model_fields.items():
            limited = any(isinstance(item, Ge | Gt | Le | Lt | Interval) for item in flat(info.metadata))
            found = list(numbers(info.annotation, limited))
            seen += len(found)
            if not all(found) and name not in ANY_NUMBER:
                without.append(f"{kind.__module__}.{kind.__name__}.{name}")
    assert seen > 200
    assert sorted(without) == []


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (LoraSettings, {"rank": 0}, "rank: Input should be greater than 0 (found 0)."),
        (LoraSettings, {"dropout": 1.0}, "dropout: Input should be less than 1 (found 1.0)."),
        (
            DecodingSettings,
            {"length_penalty": float("inf")},
            "length_penalty: Input should be a finite number",
        ),
        (ExecutorSettings, {"method": "x", "deadline": float("nan")}, "deadline: Input should be"),
    ],
)
def test_a_number_that_cannot_work_is_named(kind: type[Settings], data: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(kind, data, "job.json")
    assert text in str(error.value)
