# SPDX-License-Identifier: Apache-2.0
"""How updates are kept from the server's eyes: one server's side and one site's side for each protection.

The cryptography is in `medflare.secure_aggregation`; here it meets requests, replies and rounds.
"""

from __future__ import annotations

from typing import Literal, get_args

Protection = Literal["none", "masking", "he"]
PROTECTIONS: tuple[Protection, ...] = get_args(Protection)
"""`masking`: masks of the sites that cancel in the sum. `he`: a sum of ciphertexts the server cannot read."""
SEAL: dict[Protection, str] = {"masking": "mask", "he": "he"}
"""What a protection is called in a site's policy and in its ledger."""
