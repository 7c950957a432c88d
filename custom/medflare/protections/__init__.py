# SPDX-License-Identifier: Apache-2.0
"""Protections of updates from the server: a server's side and a site's side for each.

`registry.PROTECTIONS` lists them. The cryptography is in `medflare.secure_aggregation`; here it meets
requests, replies and rounds.
"""
