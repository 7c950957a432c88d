# SPDX-License-Identifier: Apache-2.0
"""Metrics, statistics, tables, plots and pages."""
