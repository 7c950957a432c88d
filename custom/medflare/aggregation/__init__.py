# SPDX-License-Identifier: Apache-2.0
"""Aggregation rules: pure, one file per rule; base.py holds the contract.

The table below is the only way from a job's configuration to a rule: a job names a rule and its settings,
never a dotted path. A new rule is one file and one line here (docs/how-to/add-a-rule.md). Rules that sample
clients stand in `medflare.selection.rules`; a rule's module is imported when a job names it, so that this
room imports `core` alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.core.errors import ConfigError
from medflare.core.plugins import find_plugin

RULES: dict[str, str] = {
    "bulyan": "medflare.aggregation.bulyan:Bulyan",
    "ddcs": "medflare.selection.rules:Ddcs",
    "drfa": "medflare.aggregation.drfa:Drfa",
    "fedadam": "medflare.aggregation.fedopt:FedAdam",
    "fedavg": "medflare.aggregation.weighted_mean:WeightedMean",
    "fedavgm": "medflare.aggregation.fedopt:FedAvgM",
    "fedcs": "medflare.selection.rules:FedCS",
    "fedprox": "medflare.aggregation.fedprox:FedProx",
    "fedyogi": "medflare.aggregation.fedopt:FedYogi",
    "freeze_a": "medflare.aggregation.lora:FreezeA",
    "geometric_median": "medflare.aggregation.geometric_median:GeometricMedian",
    "importance_sampling": "medflare.selection.rules:ImportanceSampling",
    "influence": "medflare.aggregation.influence:Influence",
    "krum": "medflare.aggregation.krum:Krum",
    "l_fedavg": "medflare.aggregation.l_fedavg:LossFedAvg",
    "lora_product_svd": "medflare.aggregation.lora:LoraProductSvd",
    "lora_stack": "medflare.aggregation.lora:LoraStack",
    "median": "medflare.aggregation.median:Median",
    "medoid": "medflare.aggregation.medoid:Medoid",
    "multi_krum": "medflare.aggregation.krum:MultiKrum",
    "oort": "medflare.selection.oort:Oort",
    "power_of_choice": "medflare.selection.power_of_choice:PowerOfChoice",
    "scaffold": "medflare.aggregation.scaffold:Scaffold",
    "stratified_sampling": "medflare.selection.rules:StratifiedSampling",
    "temporal": "medflare.aggregation.temporal:TemporalResidual",
    "trimmed_mean": "medflare.aggregation.trimmed_mean:TrimmedMean",
    "uniform_selection": "medflare.selection.rules:UniformSelection",
    "weighted_mean": "medflare.aggregation.weighted_mean:WeightedMean",
}
"""Rule name -> `module:Class`."""
RENAMED: dict[str, str] = {"factors": "weighted_mean"}
"""Name of an earlier release -> today's name."""


def rule_class(name: Any) -> type[AggregationRule]:
    """Return the class of a rule.

    Args:
        name: of a job, which may hold anything there.

    Raises:
        ConfigError: there is no such rule; lists the rules.
    """
    if not isinstance(name, str):
        raise ConfigError(f"rule is {name!r:.80}; expected one of {', '.join(sorted(RULES))}.")
    if name in RENAMED:
        raise ConfigError(f"aggregation rule '{name}' is now called '{RENAMED[name]}'. Rename it in the job.")
    if name not in RULES:
        return _rule_of_a_package(name)
    module, class_name = RULES[name].split(":")
    rule: type[AggregationRule] = getattr(importlib.import_module(module), class_name)
    return rule


def _rule_of_a_package(name: str) -> type[AggregationRule]:
    """Return the class of a rule that another package offers and the owner of this machine admits."""
    offered = find_plugin("rules", name)
    if offered is None:
        raise ConfigError(f"aggregation rule '{name}' does not exist. Rules: {', '.join(sorted(RULES))}.")
    if not (isinstance(offered, type) and issubclass(offered, AggregationRule)):
        raise ConfigError(f"aggregation rule '{name}': what its package offers is no AggregationRule.")
    return offered


def make_rule(name: str, settings: Mapping[str, Any]) -> AggregationRule:
    """Return the rule that a job asks for.

    Raises:
        ConfigError: there is no such rule, or it cannot use these settings.
    """
    rule = rule_class(name)
    try:
        return rule(**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"aggregation rule '{name}' cannot use its rule_settings: {error}") from None
