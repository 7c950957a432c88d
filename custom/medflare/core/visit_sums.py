# SPDX-License-Identifier: Apache-2.0
"""Names and bounds of the sums that sites send of their visits (FedTAR), for rule and learner alike."""

from __future__ import annotations

VISITS = "temporal."
"""Prefix of all of them."""
SLOPES, EXAMPLES = f"{VISITS}slopes", f"{VISITS}examples"
"""n_k ⟨g_k, w_t − w_{t-1}⟩ for t = 1..T, and n_k, the validation examples behind g_k."""
YEARS, PATIENTS = f"{VISITS}years", f"{VISITS}patients"
"""Σ years since the visit before and since the first one, (2, T), and the number of visits, (T,)."""
LARGEST = 1e3
"""No site's slope counts for more in absolute value: the sums keep a bound, and no site has all the say."""
