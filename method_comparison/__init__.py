# SPDX-License-Identifier: Apache-2.0
"""Comparisons of methods: one configuration a study, one result for each method, partition and seed.

    python -m method_comparison run ddcs            # train what is missing, then write the page
    python -m method_comparison page ddcs           # write the page of what is there
    python -m method_comparison list

How to add a study or a task: docs/how-to/compare-methods.md.
"""
