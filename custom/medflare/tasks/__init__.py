# SPDX-License-Identifier: Apache-2.0
"""Prompts in, answers out: multiple-choice questions and summaries by a text model."""
