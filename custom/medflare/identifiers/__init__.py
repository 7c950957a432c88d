# SPDX-License-Identifier: Apache-2.0
"""Identifiers of people in texts, DICOM headers and pixels: found, counted, replaced; without records or
files."""
