# SPDX-License-Identifier: Apache-2.0
"""Permissions that synthetic hospitals give and real ones deny by default: `policy` of their site.yaml."""

from __future__ import annotations

AGREED: dict[str, bool | str] = {"train_losses": True, "features": "raw"}
"""Training losses for rule `drfa`, image features for fedmrg's bank. The patients are made up."""

POLICY = (
    "    policy: {train_losses: true, features: raw}  # rule drfa, fedmrg's bank; the patients are made up"
)
"""`AGREED` as a line of one site in a file of several, indented as there."""
