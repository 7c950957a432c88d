# SPDX-License-Identifier: Apache-2.0
"""Messages between server and sites: one strict model for each, and one for the submitted job."""
