# SPDX-License-Identifier: Apache-2.0
"""What server and sites may say to each other: one strict model for each message, and for the job itself."""
