# SPDX-License-Identifier: Apache-2.0
"""Which sites train in a round: DDCS and what it is compared with (algorithms.md 6; issue 7).

Pure arithmetic: sketches of knowledge graphs, the choice of probabilities, draws, latencies and clocks. It
knows neither FLARE nor tensors.
"""
