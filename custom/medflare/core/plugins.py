# SPDX-License-Identifier: Apache-2.0
"""Parts of other packages, found by entry points and admitted by whoever owns the machine.

A package offers rules, methods, readers, metrics and protections under the groups `medflare.rules` and so on.
That it is installed is not enough: its code runs only if the site's policy names the package
(`policy: plugins`), or, at a server and for a command, the variable MEDFLARE_PLUGINS. A job names a rule, a
method or a protection and can never name a package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from medflare.core.errors import ConfigError

PluginGroup = Literal["rules", "methods", "readers", "metrics", "protections"]
VARIABLE = "MEDFLARE_PLUGINS"

_admitted: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One object that a package offers.

    Attributes:
        package: name of its distribution; version: of it.
        admitted: whether it may be loaded in this process.
    """

    group: PluginGroup
    name: str
    package: str
    version: str
    admitted: bool


def admit_plugins(packages: Iterable[str]) -> None:
    """Let packages be loaded in this process from now on, as a site's policy says."""
    _admitted.update(_canonical(name) for name in packages)


def installed_plugins() -> list[Plugin]:
    """Return everything that installed packages offer, whether it is admitted or not."""
    return sorted(
        (_plugin(group, point) for group in get_args(PluginGroup) for point in _points(group)),
        key=lambda plugin: (plugin.group, plugin.name, plugin.package),
    )


def find_plugin(group: PluginGroup, name: str) -> Any | None:
    """Load and return an object of a package; None where no package offers that name.

    Raises:
        ConfigError: its package is not admitted, two packages offer the name, or it cannot be loaded.
    """
    points = [point for point in _points(group) if point.name == name]
    if not points:
        return None
    plugins = [_plugin(group, point) for point in points]
    if len({plugin.package for plugin in plugins}) > 1:
        listed = " and ".join(sorted(plugin.package for plugin in plugins))
        raise ConfigError(f"'{name}' is offered by the packages {listed}. Uninstall one of them.")
    package = plugins[0].package
    if not plugins[0].admitted:
        raise ConfigError(
            f"'{name}' is of the package {package}, which is installed and not admitted here. At a site say "
            f"'policy: {{plugins: [{package}]}}' in site.yaml; at a server or for a command set "
            f"{VARIABLE}={package}."
        )
    try:
        return points[0].load()
    except Exception as error:  # code of somebody else: whatever it raises, a person must hear which package
        raise ConfigError(f"'{name}' of the package {package} cannot be loaded: {error}") from error


def is_admitted(group: PluginGroup, name: str) -> bool:
    """Return whether a package that is admitted here offers this name."""
    return any(
        plugin.admitted for plugin in installed_plugins() if (plugin.group, plugin.name) == (group, name)
    )


def _points(group: PluginGroup) -> tuple[EntryPoint, ...]:
    return _installed_points(group, tuple(sys.path))


@cache
def _installed_points(group: PluginGroup, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return a group's entry points of the packages on `path`.

    Kept, because a site parses its policy at every request and this opens a file of each installed package.
    """
    return tuple(entry_points(group=f"medflare.{group}"))


def _plugin(group: PluginGroup, point: EntryPoint) -> Plugin:
    assert point.dist is not None
    package = point.dist.name
    named = {_canonical(name) for name in os.environ.get(VARIABLE, "").split(",") if name.strip()}
    return Plugin(
        group=group,
        name=point.name,
        package=package,
        version=point.dist.version,
        admitted=_canonical(package) in _admitted | named,
    )


def _canonical(name: str) -> str:
    """Return a package's name as indexes compare it: lower case, dashes."""
    return name.strip().lower().replace("_", "-").replace(".", "-")
