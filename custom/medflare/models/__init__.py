# SPDX-License-Identifier: Apache-2.0
"""Networks and adapters; no data, no training."""
