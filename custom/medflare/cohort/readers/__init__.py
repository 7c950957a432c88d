# SPDX-License-Identifier: Apache-2.0
"""One dataset format per file."""
