# SPDX-License-Identifier: Apache-2.0
"""Numbers that the papers print, to stand beside ours: FedMRG's Tables I and II, in per cent.

They are of MIMIC-CXR and IU X-Ray with ResNet-101 and Llama-2-7B; only orderings can be compared with runs of
small models on synthetic hospitals.
"""

from __future__ import annotations

from collections.abc import Sequence

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CE F1", "CE recall", "CE precision")
MILLIONS: dict[str, int] = {
    "transformer": 63,
    "r2gen": 82,
    "wcl": 203,
    "dcl": 203,
    "r2gengpt": 51,
    "promptmrg": 59,
    "fed_adalora": 57,
    "fed_para": 76,
    "fed_lora": 59,
    "fed_prefix": 103,
    "fed_prompt": 102,
    "fed_vera": 51,
    "fed_dat": 88,
    "fedmrg": 59,
}
"""The column "Comm.", parameters in millions."""
MIMIC: dict[str, dict[str, tuple[float, ...]]] = {
    "cluster": {
        "transformer": (27.05, 17.00, 11.43, 8.16, 26.54, 16.1, 13.8, 23.3),
        "r2gen": (26.93, 16.80, 11.33, 8.15, 25.94, 17.3, 14.7, 25.4),
        "wcl": (37.28, 23.02, 15.31, 10.87, 26.60, 32.0, 29.6, 41.0),
        "dcl": (36.96, 22.59, 15.10, 10.86, 26.75, 28.4, 26.2, 36.3),
        "r2gengpt": (39.40, 24.94, 17.01, 12.27, 27.22, 26.6, 23.8, 35.7),
        "promptmrg": (38.23, 24.05, 16.43, 11.79, 26.70, 30.7, 26.4, 43.2),
        "fed_lora": (39.30, 24.68, 16.75, 12.01, 26.82, 25.1, 21.8, 35.2),
        "fed_dat": (35.29, 21.95, 14.92, 10.69, 25.44, 17.7, 15.1, 25.9),
        "fedmrg": (40.19, 25.52, 17.55, 12.68, 27.55, 33.9, 30.2, 45.4),
    },
    "random": {
        "transformer": (27.68, 17.48, 11.86, 8.54, 26.82, 19.0, 16.0, 28.3),
        "promptmrg": (39.20, 24.87, 17.04, 12.26, 27.14, 32.2, 28.5, 43.3),
        "fed_lora": (40.13, 25.50, 17.45, 12.57, 27.34, 30.0, 28.0, 38.0),
        "fed_dat": (38.69, 24.41, 16.56, 11.84, 26.63, 29.1, 26.1, 38.8),
        "fedmrg": (40.48, 25.80, 17.80, 12.36, 27.33, 35.6, 32.4, 45.8),
    },
}
"""Table I: setting -> method -> METRICS; without rows that our copy of the paper does not show clearly."""
IU: dict[str, dict[str, tuple[float, ...]]] = {
    "cluster": {
        "transformer": (32.04, 18.62, 11.25, 6.66, 26.07, 13.62, 13.44, 14.20),
        "r2gen": (32.50, 17.78, 10.14, 6.20, 25.68, 13.4, 13.8, 13.2),
        "wcl": (32.23, 16.64, 8.80, 5.05, 21.99, 13.46, 13.26, 6.30),
        "dcl": (31.36, 16.53, 9.06, 5.36, 23.26, 13.27, 13.18, 14.06),
        "r2gengpt": (38.68, 22.22, 13.52, 8.73, 26.43, 13.19, 12.80, 14.34),
        "promptmrg": (42.18, 25.33, 16.28, 11.05, 30.61, 18.17, 15.76, 16.39),
        "fed_lora": (38.04, 21.74, 13.12, 8.34, 25.74, 12.69, 12.38, 13.71),
        "fed_dat": (36.16, 21.30, 13.62, 9.19, 26.02, 11.11, 10.92, 11.69),
        "fedmrg": (43.55, 26.38, 17.30, 11.95, 29.73, 19.69, 17.22, 17.86),
    }
}
"""Table II: setting -> method -> METRICS."""


def published_table(methods: Sequence[str], setting: str) -> list[str]:
    """Return lines of Markdown: Table I's rows of these methods; none where it has none of them."""
    rows = {name: MIMIC.get(setting, {}).get(name) for name in methods}
    found = {name: row for name, row in rows.items() if row is not None}
    if not found:
        return []
    lines = [f"| published (MIMIC-CXR, {setting}) | Comm. | " + " | ".join(METRICS) + " |"]
    lines.append("|" + "---|" * (len(METRICS) + 2))
    for name, row in found.items():
        lines.append(f"| {name} | {MILLIONS[name]} M | " + " | ".join(f"{value:g}" for value in row) + " |")
    return lines
