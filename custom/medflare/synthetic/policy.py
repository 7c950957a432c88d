# SPDX-License-Identifier: Apache-2.0
"""The line of site.yaml by which synthetic hospitals agree to what a real one denies by default."""

from __future__ import annotations

POLICY = (
    "    policy: {train_losses: true, features: raw}  # rule drfa, fedmrg's bank; the patients are made up"
)
"""Of one site in a file of several, indented as there."""
