# SPDX-License-Identifier: Apache-2.0
"""The process that runs a learner for a site's executor or the server's scorer; without FLARE."""
