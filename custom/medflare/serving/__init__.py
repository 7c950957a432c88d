# SPDX-License-Identifier: Apache-2.0
"""A small server on this machine's own address that shows runs: `medflare serve`."""
