# SPDX-License-Identifier: Apache-2.0
"""What hides a site's update from the server: secure aggregation by masking, and what encryption needs too.

Pure: no FLARE, no files but certificates; messages are dicts and tensors
(docs/explanation/masking_protocol.md).
"""
