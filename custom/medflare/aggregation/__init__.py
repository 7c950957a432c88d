# SPDX-License-Identifier: Apache-2.0
"""Aggregation rules: pure, one file per rule; base.py holds the contract.

The table below is the only way from a job's configuration to a rule: a job names a rule and its settings,
never a dotted path. A new rule is one file and one line here (docs/how-to/add-a-rule.md).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from medflare.aggregation.base import AggregationRule
from medflare.core.errors import ConfigError

RULES: dict[str, str] = {
    "bulyan": "medflare.aggregation.bulyan:Bulyan",
    "ddcs": "medflare.aggregation.ddcs:Ddcs",
    "drfa": "medflare.aggregation.drfa:Drfa",
    "factors": "medflare.aggregation.weighted_mean:WeightedMean",
    "fedadam": "medflare.aggregation.fedopt:FedAdam",
    "fedavg": "medflare.aggregation.weighted_mean:WeightedMean",
    "fedavgm": "medflare.aggregation.fedopt:FedAvgM",
    "fedcs": "medflare.aggregation.ddcs:FedCS",
    "fedprox": "medflare.aggregation.fedprox:FedProx",
    "fedyogi": "medflare.aggregation.fedopt:FedYogi",
    "freeze_a": "medflare.aggregation.lora:FreezeA",
    "geometric_median": "medflare.aggregation.geometric_median:GeometricMedian",
    "importance_sampling": "medflare.aggregation.ddcs:ImportanceSampling",
    "influence": "medflare.aggregation.influence:Influence",
    "krum": "medflare.aggregation.krum:Krum",
    "l_fedavg": "medflare.aggregation.l_fedavg:LossFedAvg",
    "lora_product_svd": "medflare.aggregation.lora:LoraProductSvd",
    "lora_stack": "medflare.aggregation.lora:LoraStack",
    "median": "medflare.aggregation.median:Median",
    "medoid": "medflare.aggregation.medoid:Medoid",
    "multi_krum": "medflare.aggregation.krum:MultiKrum",
    "scaffold": "medflare.aggregation.scaffold:Scaffold",
    "temporal": "medflare.aggregation.temporal:TemporalResidual",
    "trimmed_mean": "medflare.aggregation.trimmed_mean:TrimmedMean",
    "uniform_selection": "medflare.aggregation.ddcs:UniformSelection",
    "weighted_mean": "medflare.aggregation.weighted_mean:WeightedMean",
}
"""Rule name -> `module:Class`. `fedavg` is the weighted mean, and so is `factors`, its name for LoRA in
algorithms.md 1.4."""


def rule_class(name: str) -> type[AggregationRule]:
    """The class of a rule; ConfigError that lists the rules otherwise."""
    if name not in RULES:
        raise ConfigError(f"aggregation rule '{name}' does not exist. Rules: {', '.join(sorted(RULES))}.")
    module, kind = RULES[name].split(":")
    found: type[AggregationRule] = getattr(importlib.import_module(module), kind)
    return found


def make_rule(name: str, settings: Mapping[str, Any]) -> AggregationRule:
    """The rule a job asks for; ConfigError that lists the rules, or says what the rule does not take."""
    kind = rule_class(name)
    try:
        return kind(**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"aggregation rule '{name}' cannot use its rule_settings: {error}") from None
