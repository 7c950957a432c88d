# SPDX-License-Identifier: Apache-2.0
"""Audits of a finished run: what its adapter gives away of the patients it was trained on."""
