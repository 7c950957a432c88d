# SPDX-License-Identifier: Apache-2.0
"""The site.yaml of synthetic hospitals, known by its first words."""

from __future__ import annotations

from medflare.core.made_folders import MadeFolder

SITE_FILE = "site.yaml"
HEAD = "# The synthetic hospitals"
"""Begins the site.yaml that medflare writes beside hospitals of its own making."""
SYNTHETIC_HOSPITALS = MadeFolder("synthetic hospitals", SITE_FILE, HEAD)
