# SPDX-License-Identifier: Apache-2.0
"""Local training: one folder per method, `registry` lists them, `base` holds what learners share."""
