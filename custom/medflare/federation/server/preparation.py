# SPDX-License-Identifier: Apache-2.0
"""What must agree between sites before round 1: frozen backbone, shared tensors, sums, validation notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from medflare.core.errors import RunError
from medflare.core.site_description import description_of
from medflare.core.tensors import SharedSpec
from medflare.wire.spec_codec import spec_from_json


def agree(
    facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str]
) -> tuple[SharedSpec, SharedSpec, dict[str, dict[str, int]]]:
    """Return (shared tensors, sums, site -> split -> examples) on which all sites agree.

    Sites that name shared validation notes (D_v) must name the same: each weighs its own update by them
    (ML-15), and losses on other notes cannot be compared.

    Raises RunError that names each site that differs from the majority, and both values.
    """
    present = [site for site in sites if site in facts]
    prints = {site: description_of(facts[site], site).backbone.fingerprint for site in present}
    problems = _differences("backbone fingerprint", prints)
    problems += _differences("checksum of what every site makes from the seed", _made(facts, present))
    problems += _different_specs(facts, present, "shared")
    problems += _different_specs(facts, present, "sums")
    advice = "Give every site the same base model and the same version of medflare."
    if not problems:
        problems = _differences("validation notes", _shared_notes(facts, present))
        advice = "Give all sites with 'validation' in site.yaml the same notes and settings there."
    if problems:
        raise RunError(f"the sites cannot train together: {'; '.join(problems)}. {advice}")
    first = facts[present[0]]
    examples = {site: description_of(facts[site], site).examples for site in present}
    return spec_from_json(first["shared"]), spec_from_json(first["sums"]), examples


def require_shared_notes(facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that all sites have validation notes, for rules by which sites weigh themselves.

    Raises:
        RunError: naming the sites without.
    """
    without = sorted(set(facts) - set(_shared_notes(facts, sorted(facts))))
    if without:
        raise RunError(
            f"the rule has every site weigh its own update by shared validation notes, and "
            f"{', '.join(without)} named none. Name them under 'validation' in site.yaml (format, root, as "
            'under \'cohort\'), the same at all sites, or set rule_settings: {"mode": "server"}.'
        )


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


def _differences(what: str, values: Mapping[str, str]) -> list[str]:
    """Return one sentence for each site that differs from the value most sites have."""
    if not values:
        return []
    usual = Counter(values.values()).most_common(1)[0][0]
    holder = next(site for site, value in values.items() if value == usual)
    return [
        f"{what} of {site} is {value}, of {holder} it is {usual}"
        for site, value in values.items()
        if value != usual
    ]


def _different_specs(facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str], key: str) -> list[str]:
    """Like `_differences`, for the first tensor in which two declarations differ."""
    first = facts[sites[0]][key]
    out = []
    for site in sites[1:]:
        other = facts[site][key]
        names = sorted(n for n in {*first, *other} if first.get(n) != other.get(n))
        if names:
            name = names[0]
            out.append(
                f"{key} tensor '{name}' of {site} is {other.get(name, 'missing')}, "
                f"of {sites[0]} it is {first.get(name, 'missing')} ({len(names)} tensors differ)"
            )
    return out
