# SPDX-License-Identifier: Apache-2.0
"""Measures the rule labeller against everything public we have, and prints Markdown tables.

    PYTHONPATH=custom python benchmarks/labeller.py [--data ../shared/data] [--split report|tune] [--errors N]

The Indiana reports are halved by the SHA-256 of their uid: rules were tuned on `tune`, numbers are for
`report`. Intervals are 95 % percentile bootstrap over reports (or sentences), 1000 resamples, seed 0.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.labelling.labels import label_report, label_reports
from medflare.labelling.negation import Status, negation_status

DEFAULT_DATA = Path(os.environ.get("MEDFLARE_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESAMPLES = 1000
CODE_OF_CHEXPERT = {"": Code.BLANK, "1.0": Code.POSITIVE, "0.0": Code.NEGATIVE, "-1.0": Code.UNCERTAIN}

GOLD: dict[str, tuple[str, ...]] = {
    "cardiomegaly": ("Cardiomegaly",),
    "lung lesion": ("Mass", "Nodule"),
    "edema": ("Edema",),
    "consolidation": ("Consolidation",),
    "pneumonia": ("Pneumonia",),
    "atelectasis": ("Atelectasis",),
    "pneumothorax": ("Pneumothorax",),
    "pleural effusion": ("Effusion",),
    "pleural other": ("Pleural_Thickening",),
    "no finding": ("normal",),
}
"""Our condition -> the labels of the NegBio gold set that mean the same (any of them)."""

MESH: dict[str, str] = {
    "lung opacity": r"opacity|infiltrate|airspace disease|density/lung|markings/lung|interstitial/lung"
    r"|lung diseases, interstitial|cicatrix/lung|pulmonary fibrosis|cicatrix/|reticul",
    "fracture": r"fractures?, bone|fracture",
    "support devices": r"catheters|medical device|implanted|tube,|tubes|stents|pacemaker|defibrillator|"
    r"prosthes",
}
"""Our condition -> pattern over the manual MeSH codes, for conditions without gold; a silver standard."""


# ------------------------------------------------------------------------------------------ arithmetic


def f1_counts(gold: np.ndarray, said: np.ndarray) -> np.ndarray:
    """(..., 3) true positives, false positives, false negatives of booleans, elementwise."""
    return np.stack([gold & said, ~gold & said, gold & ~said], axis=-1).astype(float)


def f1(counts: np.ndarray) -> np.ndarray:
    """F1 from (..., 3) counts; 0 where undefined."""
    total = 2 * counts[..., 0] + counts[..., 1] + counts[..., 2]
    return np.divide(2 * counts[..., 0], total, out=np.zeros_like(total), where=total > 0)


def interval(rows: np.ndarray, statistic: Callable[[np.ndarray], Any]) -> tuple[float, float]:
    """95 % percentile bootstrap of `statistic(sum over resampled rows)`."""
    generator = np.random.default_rng(0)
    weights = generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=RESAMPLES)
    sums = np.tensordot(weights, rows, axes=(1, 0))
    low, high = np.percentile([float(statistic(s)) for s in sums], [2.5, 97.5])
    return low, high


def precision_recall(counts: np.ndarray) -> tuple[float, float]:
    tp, fp, fn = counts
    return tp / max(tp + fp, 1.0), tp / max(tp + fn, 1.0)


# ------------------------------------------------------------------------------------------ references


def chexpert_samples(data: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Text and codes of the reports that the CheXpert labeler publishes."""
    with (data / "metric_refs/chexpert_labeler/labeled_reports.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        lower = {key.lower(): value for key, value in row.items()}
        found.append((row["Reports"], tuple(int(CODE_OF_CHEXPERT[lower[c]]) for c in CONDITIONS)))
    return found


def negex_sentences(data: Path) -> Iterator[tuple[str, tuple[int, int], bool]]:
    """(sentence, span of the concept, is it negated) of the NegEx test set.

    The concept stands in capitals in its sentence; where the file cut the sentence short, the span is the
    longest beginning of the concept that the sentence holds.
    """
    path = data / "metric_refs/negex/rsAnnotations-1-120-random.txt"
    for line in path.read_text(encoding="latin-1").splitlines()[1:]:
        _, concept, sentence, status, *_ = line.split("\t")
        span = _find_concept(concept, sentence)
        if span:
            yield sentence, span, status == "Negated"


def _find_concept(concept: str, sentence: str) -> tuple[int, int] | None:
    words = concept.split()
    for flags in (0, re.IGNORECASE):
        for count in range(len(words), 0, -1):
            text = " ".join(words[:count])
            text = text.upper() if flags == 0 else text
            match = re.search(r"\s+".join(map(re.escape, text.split())), sentence, flags)
            if match:
                return match.span()
    return None


def indiana_reports(data: Path, half: str) -> list[dict[str, Any]]:
    """Reports with gold labels and text of one half ("tune" or "report")."""
    with (data / "iu_reports/reports_dev.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row for row in rows if row["gold14"] and indiana_text(row) and _half(row["uid"]) == half]


def _half(uid: str) -> str:
    return ("tune", "report")[hashlib.sha256(uid.encode()).digest()[0] % 2]


def indiana_text(row: dict[str, Any]) -> str:
    return "\n\n".join(part for part in (row["findings"], row["impression"]) if part)


def indiana_gold(rows: Sequence[dict[str, Any]], condition: str) -> np.ndarray:
    if condition in GOLD:
        return np.array([any(row["gold14"][name] for name in GOLD[condition]) for row in rows], dtype=bool)
    wanted = re.compile(MESH[condition])
    return np.array([bool(wanted.search(";".join(row["mesh_major"]).lower())) for row in rows], dtype=bool)


# ---------------------------------------------------------------------------------------------- tables


def indiana_counts(rows: Sequence[dict[str, Any]], codes: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """(reports, names, 3); `codes` (reports, 14) says which class codes count as a yes."""
    index = [CONDITIONS.index(name) for name in names]
    gold = np.stack([indiana_gold(rows, name) for name in names], axis=1)
    return f1_counts(gold, codes[:, index])


def indiana_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Per-label, micro and macro F1, with a doubt counted as no and as yes."""
    codes = np.array(label_reports(indiana_text(row) for row in rows))
    yes = {"positive": codes == Code.POSITIVE, "positive or uncertain": np.isin(codes, (1, 3))}
    lines = ["| condition | n | P | R | F1, uncertain = no (95 % CI) | F1, uncertain = yes (95 % CI) |"]
    lines += ["|---|---:|---:|---:|---|---|"]
    for names in (tuple(GOLD), tuple(MESH)):
        strict, lenient = (indiana_counts(rows, said, names) for said in yes.values())
        for column, name in enumerate(names):
            precision, recall = precision_recall(strict[:, column].sum(axis=0))
            support = int(indiana_gold(rows, name).sum())
            label = name if name in GOLD else f"{name} (MeSH)"
            cells = [_cell(counts[:, column], f1) for counts in (strict, lenient)]
            lines.append(f"| {label} | {support} | {precision:.3f} | {recall:.3f} | {' | '.join(cells)} |")
        if names == tuple(GOLD):
            lines += _averages(strict, lenient, rows)
    return lines


def _averages(strict: np.ndarray, lenient: np.ndarray, rows: Sequence[dict[str, Any]]) -> list[str]:
    def micro(counts: np.ndarray) -> Any:
        return f1(counts.sum(axis=0))

    def macro(counts: np.ndarray) -> Any:
        return f1(counts).mean()

    found = []
    for title, chosen in (("9 findings", slice(0, -1)), ("all 10", slice(None))):
        a, b = strict[:, chosen], lenient[:, chosen]
        rates = " | ".join(f"{rate:.3f}" for rate in precision_recall(a.sum(axis=(0, 1))))
        n = int((a[..., 0] + a[..., 2]).sum())
        found.append(f"| **micro, {title}** | {n} | {rates} | {_cell(a, micro)} | {_cell(b, micro)} |")
        found.append(f"| **macro, {title}** | {n} | | | {_cell(a, macro)} | {_cell(b, macro)} |")
    return found


def _cell(rows: np.ndarray, statistic: Callable[[np.ndarray], Any]) -> str:
    low, high = interval(rows, statistic)
    return f"{float(statistic(rows.sum(axis=0))):.3f} ({low:.3f} to {high:.3f})"


def chexpert_line(data: Path) -> str:
    samples = chexpert_samples(data)
    same = sum(label_report(text) == codes for text, codes in samples)
    return f"| CheXpert labeler samples, all 14 codes equal | {len(samples)} | {same} of {len(samples)} |"


def negex_counts(data: Path) -> np.ndarray:
    """(sentences, 3): true positives, false positives, false negatives of 'negated'."""
    rows = list(negex_sentences(data))
    gold = np.array([negated for *_, negated in rows])
    said = np.array([negation_status(text, span) is Status.NEGATED for text, span, _ in rows])
    return f1_counts(gold, said)


def negex_lines(data: Path) -> list[str]:
    counts = negex_counts(data)
    total = counts.sum(axis=0)
    accuracy = 1 - (total[1] + total[2]) / len(counts)
    return [
        f"| NegEx, negated: precision | {len(counts)} | {_cell(counts, lambda c: precision_recall(c)[0])} |",
        f"| NegEx, negated: recall | {len(counts)} | {_cell(counts, lambda c: precision_recall(c)[1])} |",
        f"| NegEx, negated: F1 | {len(counts)} | {_cell(counts, f1)} |",
        f"| NegEx, accuracy | {len(counts)} | {accuracy:.3f} |",
    ]


def speed_line(texts: Sequence[str]) -> str:
    """Reports per second on first sight (repeated sentences within the set are remembered)."""
    from medflare.labelling import labels, negation

    labels.mentions_in.cache_clear()
    negation.find_cues.cache_clear()
    start = time.perf_counter()
    label_reports(texts)
    rate = len(texts) / (time.perf_counter() - start)
    return f"| speed, one core, reports per second | {len(texts)} | {rate:.0f} |"


def print_errors(rows: Sequence[dict[str, Any]], limit: int) -> None:
    """For tuning: what the labeller says and the gold does not, and the reverse."""
    codes = np.array(label_reports(indiana_text(row) for row in rows))
    for name in (*GOLD, *MESH):
        said = codes[:, CONDITIONS.index(name)]
        gold = indiana_gold(rows, name)
        for title, wrong in (("FALSE +", ~gold & (said == 1)), ("MISSED", gold & (said != 1))):
            places = np.flatnonzero(wrong)
            print(f"\n=== {name}: {title} {len(places)}")
            for place in places[:limit]:
                row = rows[place]
                print(f"[{said[place]}] {' '.join(indiana_text(row).split())} ## {row['mesh_major']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--split", choices=("tune", "report"), default="report")
    parser.add_argument("--errors", type=int, default=0, help="print this many errors per label instead")
    arguments = parser.parse_args()
    rows = indiana_reports(arguments.data, arguments.split)
    if arguments.errors:
        print_errors(rows, arguments.errors)
        return
    print("| reference | n | value (95 % CI) |\n|---|---:|---|")
    print("\n".join([chexpert_line(arguments.data), *negex_lines(arguments.data)]))
    print(speed_line([indiana_text(row) for row in rows]))
    print(f"\nIndiana gold, half '{arguments.split}', {len(rows)} reports\n")
    print("\n".join(indiana_table(rows)))


if __name__ == "__main__":
    main()
