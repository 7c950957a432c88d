# SPDX-License-Identifier: Apache-2.0
"""Write the generated pages of docs/reference: `python -m tools.reference` writes all of them."""
