# SPDX-License-Identifier: Apache-2.0
"""From a hospital's policy to what it insists on in a secure sum."""

from __future__ import annotations

from medflare.egress.policy import Policy
from medflare.secure_aggregation.round_parameters import Limits


def limits_of(policy: Policy) -> Limits:
    """Return what a site's policy asks of a secure sum; its `min_sites` may be below the default of three."""
    rules, default = policy.rules, Limits()
    return Limits(
        min_sites=rules.min_sites if "min_sites" in rules.model_fields_set else default.min_sites,
        min_threshold=rules.min_threshold or default.min_threshold,
        partners=None if rules.partners is None else frozenset(rules.partners),
        min_noise=rules.min_site_noise,
    )
