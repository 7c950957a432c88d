# SPDX-License-Identifier: Apache-2.0
"""House styles: the words and the layouts of synthetic reports."""
