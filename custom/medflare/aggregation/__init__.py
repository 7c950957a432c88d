# SPDX-License-Identifier: Apache-2.0
"""Aggregation rules: pure, one file per rule."""
