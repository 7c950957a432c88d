# SPDX-License-Identifier: Apache-2.0
"""Galleries of the result page: test records with what a model made of them."""
