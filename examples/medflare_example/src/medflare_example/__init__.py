# SPDX-License-Identifier: Apache-2.0
"""A rule and a reader for medflare."""
