# SPDX-License-Identifier: Apache-2.0
"""FedTAR (paper 001) at one site: profiles of patients, training on visits, sums sent beside updates."""
