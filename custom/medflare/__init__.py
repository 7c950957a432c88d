# SPDX-License-Identifier: Apache-2.0
"""medflare: hospitals train medical language models together without moving patient data."""

from medflare.version import __version__

__all__ = ["__version__"]
