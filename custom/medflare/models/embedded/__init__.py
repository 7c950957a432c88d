# SPDX-License-Identifier: Apache-2.0
"""The small weights that ship with the product, and the script that made them."""
