# SPDX-License-Identifier: Apache-2.0
"""Secure aggregation, which hides a site's update from the server: masking, and parts of encryption.

Pure: no FLARE, no files but certificates; messages are dicts and tensors
(docs/explanation/masking_protocol.md).
"""
