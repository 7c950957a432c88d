# SPDX-License-Identifier: Apache-2.0
"""Numbers that the papers print, to stand beside ours: FedMRG's Tables I and II, in per cent.

They are of MIMIC-CXR and IU X-Ray with ResNet-101 and Llama-2-7B; only orderings can be compared with runs of
small models on synthetic hospitals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        "fed_adalora": (39.75, 24.90, 16.85, 12.03, 27.10, 29.9, 27.2, 38.7),
        "fed_para": (38.48, 24.16, 16.38, 11.74, 26.13, 26.4, 23.8, 35.0),
        "fed_lora": (39.30, 24.68, 16.75, 12.01, 26.82, 25.1, 21.8, 35.2),
        "fed_prefix": (38.46, 24.10, 16.43, 11.90, 26.77, 26.9, 24.1, 35.5),
        "fed_prompt": (38.27, 23.93, 16.21, 11.65, 26.54, 28.4, 25.7, 37.1),
        "fed_vera": (38.03, 23.89, 16.22, 11.64, 26.58, 25.4, 23.1, 33.8),
        "fed_dat": (35.29, 21.95, 14.92, 10.69, 25.44, 17.7, 15.1, 25.9),
        "fedmrg": (40.19, 25.52, 17.55, 12.68, 27.55, 33.9, 30.2, 45.4),
    },
    "random": {
        "transformer": (27.68, 17.48, 11.86, 8.54, 26.82, 19.0, 16.0, 28.3),
        "dcl": (37.11, 23.46, 15.42, 11.22, 27.08, 29.6, 27.1, 38.7),
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
        "fed_adalora": (36.93, 21.08, 12.71, 8.11, 25.66, 13.01, 12.78, 13.91),
        "fed_para": (37.40, 21.17, 12.45, 7.76, 25.65, 11.71, 11.49, 12.36),
        "fed_lora": (38.04, 21.74, 13.12, 8.34, 25.74, 12.69, 12.38, 13.71),
        "fed_prefix": (37.68, 21.63, 13.19, 8.53, 25.82, 13.07, 12.76, 14.08),
        "fed_prompt": (36.80, 20.78, 12.37, 7.80, 25.53, 12.38, 12.12, 13.27),
        "fed_vera": (37.23, 21.05, 12.54, 7.96, 25.38, 12.68, 12.35, 13.60),
        "fed_dat": (36.16, 21.30, 13.62, 9.19, 26.02, 11.11, 10.92, 11.69),
        "fedmrg": (43.55, 26.38, 17.30, 11.95, 29.73, 19.69, 17.22, 17.86),
    },
    "random": {
        "transformer": (34.15, 19.10, 12.06, 7.73, 26.10, 14.2, 14.1, 14.6),
        "r2gen": (35.91, 20.45, 12.06, 7.50, 26.83, 13.3, 13.1, 13.7),
        "wcl": (36.31, 21.58, 12.33, 8.01, 27.53, 13.5, 13.5, 14.0),
        "dcl": (35.40, 19.92, 11.56, 7.15, 25.48, 13.0, 13.0, 13.4),
        "r2gengpt": (39.71, 23.20, 14.11, 9.06, 26.56, 13.0, 12.7, 14.0),
        "promptmrg": (42.05, 25.10, 15.99, 10.79, 29.99, 17.0, 14.9, 15.4),
        "fed_adalora": (38.40, 22.04, 13.17, 8.29, 26.28, 12.9, 12.7, 13.8),
        "fed_para": (38.10, 21.82, 13.06, 8.26, 26.27, 12.4, 12.1, 13.3),
        "fed_lora": (39.88, 23.15, 14.04, 9.00, 27.10, 14.0, 13.7, 15.0),
        "fed_prefix": (37.85, 21.62, 12.98, 8.24, 26.17, 12.5, 12.3, 13.4),
        "fed_prompt": (39.42, 22.71, 13.63, 8.64, 26.47, 13.2, 12.9, 14.2),
        "fed_vera": (39.95, 23.28, 14.30, 9.26, 26.69, 12.7, 12.4, 13.7),
        "fed_dat": (38.53, 22.32, 13.41, 8.49, 26.19, 13.9, 13.7, 14.9),
        "fedmrg": (42.99, 25.70, 16.45, 11.15, 29.66, 18.1, 16.3, 16.6),
    },
}
"""Table II: setting -> method -> METRICS. WCL's precision in `cluster` stands so in the paper."""


def published_tables(methods: Sequence[str], setting: str) -> list[list[str]]:
    """Return Tables I and II as lines of Markdown, of these methods; a table that has none is left out."""
    given = {"MIMIC-CXR": MIMIC, "unseen: IU X-Ray": IU}
    tables = [_table(methods, f"{name}, {setting}", table.get(setting, {})) for name, table in given.items()]
    return [lines for lines in tables if lines]


def _table(methods: Sequence[str], title: str, rows: Mapping[str, tuple[float, ...]]) -> list[str]:
    found = {name: rows[name] for name in methods if name in rows}
    if not found:
        return []
    lines = [f"| published ({title}) | Comm. | " + " | ".join(METRICS) + " |"]
    lines.append("|" + "---|" * (len(METRICS) + 2))
    for name, row in found.items():
        lines.append(f"| {name} | {MILLIONS[name]} M | " + " | ".join(f"{value:g}" for value in row) + " |")
    return lines
