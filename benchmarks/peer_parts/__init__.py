# SPDX-License-Identifier: Apache-2.0
"""Parts of `benchmarks/peers.py`: the same arrays in a method of medflare and in stock FLARE."""
