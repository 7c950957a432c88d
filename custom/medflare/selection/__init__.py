# SPDX-License-Identifier: Apache-2.0
"""Which sites train in a round: DDCS and what it is compared with (issue 7).

Knowledge graphs and their sketches, the choice of probabilities, draws, latencies and clocks. It knows no
FLARE; all but the reading of texts by a language model and the completion of graphs is pure arithmetic.
"""
