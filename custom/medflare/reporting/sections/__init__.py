# SPDX-License-Identifier: Apache-2.0
"""Sections of the result page: each module turns a run record into plain data for its template."""
