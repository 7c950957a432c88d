# SPDX-License-Identifier: Apache-2.0
"""`medflare preflight`: whether this machine can take part, check by check, without the internet."""
