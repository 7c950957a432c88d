# SPDX-License-Identifier: Apache-2.0
"""A rule, a reader, a metric and a protection for medflare."""
