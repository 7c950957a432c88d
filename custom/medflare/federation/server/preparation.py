# SPDX-License-Identifier: Apache-2.0
"""Agreement of sites before round 1 on the frozen backbone, shared tensors, sums and validation notes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medflare.core.adapter_config import BASE_MODEL
from medflare.core.errors import RunError
from medflare.core.method import HIGHEST_PRETRAINED_RATE
from medflare.core.site_description import OWN, SiteDescription, description_of
from medflare.core.summed_metrics import VALIDATION
from medflare.core.tensors import SharedSpec
from medflare.egress.failures import clean_text
from medflare.learners.registry import known_method
from medflare.wire.spec_codec import spec_from_json

MOST_SHOWN = 400
"""Most characters of a declared value in a message."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Declarations of the sites that can train together.

    Attributes:
        shared, sums: tensors of an update, and of its declared sums.
        examples: site -> split -> count, of the sites that take part.
        excluded: site -> in what it differs from the others; it takes no part in the run.
    """

    shared: SharedSpec
    sums: SharedSpec
    examples: dict[str, dict[str, int]]
    excluded: dict[str, str]


def agree(
    facts: Mapping[str, Mapping[str, Any]],
    sites: Sequence[str],
    required: int | None = None,
) -> Agreement:
    """Return on what most sites agree; the others are excluded, each with what differs.

    Sites agree where backbone, shared tensors and sums are equal. More than half of those that answered must,
    and `required` of them: what one site says decides nothing. Sites that name shared validation notes (D_v)
    must name the same: each weighs its own update by them (ML-15), and losses on other notes cannot be
    compared. A site that differs in its method, its profiles or its protection's keys is excluded too; where
    too few would be left, what needs them equal says so itself.

    Args:
        facts: site -> facts of its reply to 'prepare'.
        sites: all sites of the run, in order.
        required: how many must agree; None for all that answered.

    Raises:
        RunError: too few sites agree; it names each site that differs from the majority, and both values.
    """
    present = [site for site in sites if site in facts]
    required = len(present) if required is None else required

    def enough(excluded: Mapping[str, Any]) -> bool:
        left = len(present) - len(excluded)
        return 2 * left > len(present) and left >= required

    prints = {site: description_of(facts[site], site).backbone.fingerprint for site in present}
    excluded = _join(
        _differences("backbone fingerprint", prints),
        _differences("checksum of what every site makes from the seed", _made(facts, present)),
        _different_specs(facts, present, "shared"),
        _different_specs(facts, present, "sums"),
    )
    advice = "Give every site the same base model and the same version of medflare."
    if enough(excluded):
        kept = [site for site in present if site not in excluded]
        excluded |= _differences("validation notes", _shared_notes(facts, kept))
        advice = "Give all sites with 'validation' in site.yaml the same notes and settings there."
    if not enough(excluded):
        raise RunError(f"the sites cannot train together: {'; '.join(excluded.values())}. {advice}")
    for what in ("method", "separate_sums", "protection", "adapter configuration"):
        kept = [site for site in present if site not in excluded]
        others = _differences(what, {site: _declared(facts[site], site, what) for site in kept})
        if enough(excluded | others):
            excluded |= others
    kept = [site for site in present if site not in excluded]
    first = facts[kept[0]]
    examples = {site: description_of(facts[site], site).examples for site in kept}
    return Agreement(spec_from_json(first["shared"]), spec_from_json(first["sums"]), examples, excluded)


def rate_warning(method: str, settings: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what is wrong with a job that trains a pretrained model at the embedded model's rate, or ''.

    Args:
        settings: of the job, as submitted.
        facts: site -> facts of its reply to 'prepare'.
    """
    known = known_method(method)
    rate = known.rate_for_embedded(settings) if known else None
    names = {site: description_of(answer, site).backbone.name for site, answer in facts.items()}
    pretrained = sorted({name for name in names.values() if not name.startswith(OWN)})
    if known is None or rate is None or not pretrained:
        return ""
    return clean_text(
        f"the learning rate is {rate:g}, which is for {known.new_model or 'the embedded model'}, and the "
        f"sites have {', '.join(pretrained)}: most rates for a pretrained model are below "
        f"{HIGHEST_PRETRAINED_RATE:g}. Submit the job with preset={known.preset_for(0)}, or a lower rate."
    )


def best_warning(best_metric: str, means: Mapping[str, float]) -> str:
    """Return why no round can be the best one, or ''.

    Args:
        means: over the sites after the first validation; empty of its metrics where none leave the sites.
    """
    measured = sorted(name for name in means if name.startswith(f"{VALIDATION}_"))
    if not measured or best_metric in means:  # a metric of training may decide too
        return ""
    return clean_text(
        f"no round will be the best one: best_metric is '{best_metric}', and the sites measure "
        f"{', '.join(measured)}. The final adapter is written all the same."
    )


def require_shared_notes(
    facts: Mapping[str, Mapping[str, Any]], required: int | None = None
) -> dict[str, str]:
    """Check that sites have validation notes, for rules by which sites weigh themselves.

    Args:
        required: how many must have them, and more than half; None for all.

    Returns:
        site -> reason, for the sites without, which take no part.

    Raises:
        RunError: naming the sites without, where too few have any.
    """
    without = sorted(set(facts) - set(_shared_notes(facts, sorted(facts))))
    left = len(facts) - len(without)
    if 2 * left <= len(facts) or left < (len(facts) if required is None else required):
        raise RunError(
            f"the rule has every site weigh its own update by shared validation notes, and "
            f"{', '.join(without)} named none. Name them under 'validation' in site.yaml (format, root, as "
            'under \'cohort\'), the same at all sites, or set rule_settings: {"mode": "server"}.'
        )
    return dict.fromkeys(without, "it named no validation notes, by which sites weigh themselves here")


def _made(facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str]) -> dict[str, str]:
    """Return site -> checksum of what it made from the run's seed (VeRA's A and B)."""
    exports = {site: description_of(facts[site], site).export for site in sites}
    return {
        site: str((export.get("untravelled") or {}).get("sha256", "none")) for site, export in exports.items()
    }


def _shared_notes(facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str]) -> dict[str, str]:
    """Return site -> how many validation notes it has and their digest, of the sites that name any."""
    records = {site: description_of(facts[site], site).validation for site in sites}
    return {
        site: f"{shared.notes} of digest {shared.sha256[:12]}" for site, shared in records.items() if shared
    }


def _declared(facts: Mapping[str, Any], site: str, what: str) -> str:
    """Return what a site declared, as a text that is equal where the declarations are."""
    value: Any = facts.get(what)
    if what == "protection":
        value = description_of(facts, site).protection
    elif what == "adapter configuration":  # a base model's folder may have another name at each site
        config = description_of(facts, site).adapter_config
        value = {key: entry for key, entry in config.items() if key != BASE_MODEL}
    return json.dumps(value, sort_keys=True)


def common_description(facts: Mapping[str, Mapping[str, Any]]) -> SiteDescription:
    """Return the description from which the result is written: of each part the one that most sites declared.

    The result is opened by people who trust all sites together and none of them alone.
    """
    descriptions = {site: description_of(facts[site], site) for site in sorted(facts)}
    first = descriptions[min(descriptions)]
    exports = {site: json.dumps(one.export, sort_keys=True) for site, one in descriptions.items()}
    names = {site: str(one.adapter_config.get(BASE_MODEL, "")) for site, one in descriptions.items()}
    config = dict(first.adapter_config)
    if config.get(BASE_MODEL):
        config[BASE_MODEL] = _usual(names)[0]
    return first.model_copy(
        update={"adapter_config": config, "export": descriptions[_usual(exports)[1]].export}
    )


def _join(*differences: Mapping[str, str]) -> dict[str, str]:
    """Return site -> all its differences in one text."""
    sites = {site: None for part in differences for site in part}
    return {site: "; ".join(part[site] for part in differences if site in part) for site in sites}


def _usual(values: Mapping[str, str]) -> tuple[str, str]:
    """Return (the value most sites have, the first site that has it)."""
    value = Counter(values.values()).most_common(1)[0][0]
    return value, next(site for site in values if values[site] == value)


def _differences(what: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return site -> one sentence, for each site that differs from the value most sites have."""
    if not values:
        return {}
    usual, holder = _usual(values)
    return {
        site: clean_text(f"{what} of {site} is {_cut(value)}, of {holder} it is {_cut(usual)}")
        for site, value in values.items()
        if value != usual
    }


def _different_specs(
    facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str], key: str
) -> dict[str, str]:
    """Like `_differences`, for the first tensor in which two declarations differ."""
    texts = {site: json.dumps(facts[site][key], sort_keys=True) for site in sites}
    usual, holder = _usual(texts)
    first, out = facts[holder][key], dict[str, str]()
    for site in sites:
        if texts[site] != usual:
            other = facts[site][key]
            names = sorted(n for n in {*first, *other} if first.get(n) != other.get(n))
            name = names[0]
            out[site] = clean_text(
                f"{key} tensor '{name}' of {site} is {other.get(name, 'missing')}, "
                f"of {holder} it is {first.get(name, 'missing')} ({len(names)} tensors differ)"
            )
    return out


def _cut(value: str) -> str:
    return value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}..."
