# SPDX-License-Identifier: Apache-2.0
"""Selection of the clients of a round: DDCS and what it is compared with (Zhang et al. 2025).

Probabilities, samples, latencies and simulated clocks, and the aggregation rules that use them. Plain NumPy
and torch, without FLARE.
"""
