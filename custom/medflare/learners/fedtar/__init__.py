# SPDX-License-Identifier: Apache-2.0
"""FedTAR at one site: who a patient is, what visits tell the server (FedTAR, paper 001)."""
