# SPDX-License-Identifier: Apache-2.0
"""site.yaml: one module for each part of the document; `site` reads the file."""
