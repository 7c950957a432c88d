# SPDX-License-Identifier: Apache-2.0
"""Combinations of rule, method, uplink codec and protection that work; others are refused early.

Everything follows from what rules, methods and codecs say of themselves, so a new one needs no line here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from medflare.aggregation import make_rule
from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import (
    AllowsSiteFactors,
    ReadsMetrics,
    SamplesClients,
    ScoresCandidates,
)
from medflare.aggregation.robust import ByzantineRule
from medflare.core.errors import ConfigError
from medflare.core.method import MethodSettings
from medflare.learners.registry import get_method
from medflare.protections.base import Protection
from medflare.protections.compatibility import unreadable
from medflare.protections.registry import get_protection
from medflare.wire.compression import CODECS

_TRAVELS = {
    "none": "no LoRA factors travel",
    "factors": "both LoRA factors travel",
    "freeze_a": "only the LoRA factors B travel",
    "fedsa": "only the LoRA factors A travel",
    "stack": "sites expect the merged factors of rule 'lora_stack'",
}


def problems(
    rule: str,
    method: str,
    settings: Mapping[str, Any],
    uplink: str,
    protection: str = "none",
    *,
    rule_settings: Mapping[str, Any] | None = None,
    sites: int | None = None,
) -> list[str]:
    """Why a combination cannot work, each with what to use instead; nothing if it can.

    Args:
        settings: the method's own, as a job has them; rule_settings: the rule's.
        uplink: a name in `compression.CODECS`.
        sites: how many can take part at most; None where that is not known yet.

    Raises ConfigError where a part alone is wrong: no such rule, method, codec or protection, bad settings.
    """
    if uplink not in CODECS:
        raise ConfigError(f"'{uplink}' is none of {', '.join(CODECS)}.")
    protected = get_protection(protection)
    rule_object, chosen = make_rule(rule, rule_settings or {}), get_method(method).resolve(settings)
    mode = chosen.lora_sharing
    return [
        *unreadable(rule, rule_object, protected),
        *_codec(uplink, protected),
        *_factors(rule, rule_object, method, mode),
        *_comparable(rule, rule_object, mode, chosen),
        *_weighed(rule, rule_object, method, mode),
        *_enough(rule, rule_object, sites),
    ]


def _codec(uplink: str, protection: Protection) -> Iterator[str]:
    if protection.server_reads != "updates" and not CODECS[uplink].summable:
        summable = " or ".join(f"'{name}'" for name, codec in CODECS.items() if codec.summable)
        yield (
            f"uplink '{uplink}' sends codes that mean nothing once they are added, as {protection.words} "
            f"adds them. Use uplink {summable}."
        )


def _factors(name: str, rule: AggregationRule, method: str, mode: str) -> Iterator[str]:
    """Yield a reason for LoRA factors that do not travel as the rule, or the sites, need it."""
    if rule.facts.sharing and mode not in rule.facts.sharing:
        wanted = rule.facts.sharing[0]
        can = mode != "none" and _can_share(method, wanted)
        advice = f"Set settings.sharing to '{wanted}' or use" if can else "Use"
        other = "lora_stack" if mode == "stack" else "weighted_mean"
        yield (
            f"rule '{name}' works on LoRA factors shared as '{wanted}'; with method '{method}' as it is set, "
            f"{_TRAVELS[mode]}. {advice} rule '{other}'."
        )
    elif mode == "stack" and "stack" not in rule.facts.sharing:
        instead = (
            f"rule_settings {json.dumps(dict(rule.facts.stack_with))}, " if rule.facts.stack_with else ""
        )
        yield (
            f"settings.sharing is 'stack': {_TRAVELS[mode]}, and rule '{name}' sends none. "
            f"Use {instead}rule 'lora_stack', or settings.sharing 'factors'."
        )


def _can_share(method: str, mode: str) -> bool:
    """Return whether a method has the setting `sharing` and knows this mode."""
    try:
        return get_method(method).resolve({"sharing": mode}).lora_sharing == mode
    except ConfigError:
        return False


def _comparable(name: str, rule: AggregationRule, mode: str, settings: MethodSettings) -> Iterator[str]:
    """Yield a reason for a rule that compares updates which are incomplete or mean different things."""
    if not rule.facts.compares:
        return
    if mode == "fedsa":
        yield (
            f"rule '{name}' compares updates, and with settings.sharing 'fedsa' each site trains its A "
            "against a B of its own: honest sites differ too. Use settings.sharing 'factors', or rule "
            "'weighted_mean'."
        )
    for what, instead in settings.sends_sums.items():
        yield (
            f"rule '{name}' withstands hostile updates, but the sums that {what} sends beside them are added "
            f"from every site. Use {instead}."
        )


def _weighed(name: str, rule: AggregationRule, method: str, mode: str) -> Iterator[str]:
    """Yield a reason for weights by a number nobody sends, or by a score nobody can compute."""
    facts = get_method(method).facts
    reading, scored = rule.capability(ReadsMetrics), rule.capability(ScoresCandidates)
    for metric in reading.metrics_read() if reading else ():
        if metric not in facts.metrics:
            yield (
                f"rule '{name}' weighs updates by their metric '{metric}', which updates of method "
                f"'{method}' do not hold (they hold {', '.join(facts.metrics)}). Use rule 'weighted_mean'."
            )
    weighs_itself = rule.capability(AllowsSiteFactors) and not rule.capability(SamplesClients)
    if (scored and not facts.judged) or (weighs_itself and not facts.scored):
        yield (
            f"rule '{name}' weighs updates by their loss on shared validation data, which method '{method}' "
            "does not compute. Use rule 'weighted_mean'."
        )
    elif scored and mode == "fedsa":
        yield (
            "settings.sharing is 'fedsa': every site keeps its own B, so nobody else can score its update. "
            f"Use {rule.facts.instead}; or settings.sharing 'factors'."
        )


def _enough(name: str, rule: AggregationRule, sites: int | None) -> Iterator[str]:
    """Yield a reason for fewer sites than a Byzantine guarantee needs (VG-6)."""
    byzantine = rule.capability(ByzantineRule)
    if sites is None or byzantine is None:
        return
    settings, (per_f, fixed) = byzantine.settings, byzantine.sites_per_f
    if settings.allow_unsafe or sites >= byzantine.min_sites:
        return
    f = (sites - fixed) // per_f
    smaller = f'{{"f": {f}}}' if f >= 1 else '{"allow_unsafe": true} to go on without a Byzantine guarantee'
    yield (
        f"rule '{name}' with f = {settings.f} needs {byzantine.min_sites} sites and has {sites} at most. "
        f"Use rule_settings {smaller}, or rule 'median'."
    )
