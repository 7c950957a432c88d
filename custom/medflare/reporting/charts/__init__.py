# SPDX-License-Identifier: Apache-2.0
"""Charts: the geometry of shapes, which templates/chart.html draws as inline SVG."""
