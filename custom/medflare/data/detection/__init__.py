# SPDX-License-Identifier: Apache-2.0
"""Guesses of what a folder of a hospital's files is, for `medflare cohort init`; a person checks them."""
