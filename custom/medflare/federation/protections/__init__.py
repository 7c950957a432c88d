# SPDX-License-Identifier: Apache-2.0
"""How updates are kept from the server's eyes: one server's side and one site's side for each protection.

`registry.PROTECTIONS` lists them. The cryptography is in `medflare.secure_aggregation`; here it meets
requests, replies and rounds.
"""
