# SPDX-License-Identifier: Apache-2.0
"""Jinja2 templates of the result page; everything that they show is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def environment() -> Environment:
    """Return the environment of `reporting/templates`; a name that a view lacks is an error."""
    environment = Environment(
        loader=PackageLoader("medflare.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name, digits in (("px", 1), ("px2", 2), ("px0", 0)):
        environment.filters[name] = f"{{:.{digits}f}}".format
    return environment


def render_template(name: str, view: Any, **more: Any) -> str:
    """Return the HTML of a template.

    Args:
        name: file in `reporting/templates`.
        view: plain data that the template knows as `view`.
        more: further names.
    """
    return environment().get_template(name).render(view=view, **more)


def style_sheet() -> str:
    """Return the page's CSS."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), "page.css")[0]
