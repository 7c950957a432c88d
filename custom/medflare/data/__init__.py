# SPDX-License-Identifier: Apache-2.0
"""A site's data: files in, typed records and batches out."""
