# SPDX-License-Identifier: Apache-2.0
"""Radiograph, reference and generated report side by side, with what they agree on.

Studies are taken at fixed ranks of agreement, good and bad ones alike, so that nobody picks the pretty ones.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.evaluation.label_metrics import counts, precision_recall_f1
from medflare.evaluation.predictions import Prediction
from medflare.reporting.html import Html, details, paragraph, safe

LONGEST_SIDE = 400
QUALITY = 82
SIGNS = {"agree": "✓", "missed": "− missed:", "invented": "+ invented:"}
NORMAL = {"agree": "✓ no finding", "missed": "− not called normal", "invented": "+ wrongly called normal"}

Found = Sequence[tuple[Path, list[Prediction]]]
Ranked = TypeVar("Ranked")


def gallery_section(predictions: Found, studies: int) -> Html:
    """Up to `studies` studies of every site; nothing where no predictions are at hand."""
    by_site: dict[str, dict[str, dict[str, tuple[Path, Prediction]]]] = {}
    for path, items in predictions:
        for item in items:
            place = by_site.setdefault(item.site, {}).setdefault(item.study_id, {})
            place[item.adapter] = (path, item)
    if not by_site or studies < 1:
        return Html("")
    parts = [
        paragraph(
            "Studies stand at fixed ranks of agreement between the two reports' findings, from good to bad; "
            "none was chosen by hand. Findings are read from the texts by the labeller named in the set-up; "
            "only affirmed ones count, so uncertain ones are not shown."
        )
    ]
    for site, found in sorted(by_site.items()):
        chosen = pick([main_adapter(adapters)[1] for adapters in found.values()], studies)
        cards = "".join(card(found[item.study_id]) for item in chosen)
        parts.append(
            details(f"{site}: {len(chosen)} of {len(found)} studies", cards, kind="site", opened=True)
        )
    return Html("".join(parts))


def main_adapter(adapters: dict[str, tuple[Path, Prediction]]) -> tuple[Path, Prediction]:
    """The adapter a site would use: its own where it has one."""
    return next(adapters[kind] for kind in ("personalised", "generic", "none") if kind in adapters)


def agreement(item: Prediction) -> float:
    """F1 of the affirmed conditions of one study."""
    tp, fp, fn = (part.sum(axis=1) for part in counts([item.gold_codes], [item.predicted_codes]))
    return float(precision_recall_f1(tp, fp, fn)[2][0])


def pick(items: Sequence[Prediction], number: int) -> list[Prediction]:
    """`number` studies at evenly spaced ranks of agreement, best first; those with an affirmed finding."""
    telling = [item for item in items if Code.POSITIVE in (*item.gold_codes, *item.predicted_codes)]
    ranked = sorted(telling or items, key=lambda item: (-agreement(item), item.study_id))
    return at_ranks(ranked, number)


def at_ranks(ranked: Sequence[Ranked], number: int) -> list[Ranked]:
    """`number` items at evenly spaced ranks, the best and the worst left aside; all where there are fewer."""
    if len(ranked) <= number:
        return list(ranked)
    places = np.linspace(0.05, 0.95, number) * (len(ranked) - 1) if number > 1 else [0.5 * (len(ranked) - 1)]
    return [ranked[i] for i in dict.fromkeys(round(float(place)) for place in places)]


def chips(item: Prediction) -> Html:
    """What both say, what the generated report lacks, what it adds; told in words, not by colour alone."""
    found: list[tuple[str, str, str]] = []
    for name, gold, said in zip(CONDITIONS, item.gold_codes, item.predicted_codes, strict=True):
        if gold == Code.POSITIVE and said == Code.POSITIVE:
            found.append(("agree", name, "affirmed in both reports"))
        elif gold == Code.POSITIVE:
            found.append(("missed", name, f"generated report: {Code(said).name.lower()}"))
        elif said == Code.POSITIVE:
            found.append(("invented", name, f"reference report: {Code(gold).name.lower()}"))
    order = list(SIGNS)
    lines = [
        f'<li class="{kind}" title="{safe(why)}">{_chip(kind, name)}</li>'
        for kind, name, why in sorted(found, key=lambda entry: order.index(entry[0]))
    ] or ['<li class="none">neither report affirms a finding</li>']
    return Html(f'<ul class="chips" aria-label="Agreement of findings">{"".join(lines)}</ul>')


def _chip(kind: str, name: str) -> str:
    return NORMAL[kind] if name == "no finding" else f"{SIGNS[kind]} {safe(name)}"


def card(adapters: dict[str, tuple[Path, Prediction]], caption: str = "", remarks: str = "") -> Html:
    """One study with its reports. caption: below the picture; remarks: markup after the findings."""
    path, item = main_adapter(adapters)
    others = [other for kind, (_, other) in adapters.items() if kind != item.adapter]
    caption = caption or f"Study {item.study_id}, patient {item.patient_id}"
    more = "".join(
        details(
            f"What the {other.adapter} adapter wrote",
            f"<blockquote>{_report(other.generated)}</blockquote>{chips(other)}",
        )
        for other in others
    )
    name = f"Generated, {item.adapter} adapter" if item.adapter != "none" else "Generated"
    return Html(
        f'<article class="study"><figure>{picture(item, path.parent)}'
        f"<figcaption>{safe(caption)}</figcaption></figure>"
        f"<div><h4>Reference</h4><blockquote>{_report(item.reference)}</blockquote></div>"
        f"<div><h4>{safe(name)}</h4><blockquote>{_report(item.generated)}</blockquote></div>"
        f'<div class="under">{chips(item)}{remarks}{more}</div></article>'
    )


def _report(text: str) -> str:
    return safe(text) if text.strip() else '<span class="soft">(empty)</span>'


def picture(item: Prediction, folder: Path) -> Html:
    """The study's first image as an embedded JPEG, or a box that says why there is none."""
    from medflare.data.images import DecodeError, read_image

    if item.image is None:
        return Html('<div class="noimage">no image recorded</div>')
    try:
        pixels = _plain_picture(folder / item.image)
        if pixels is None:
            pixels = read_image(folder / item.image, at_least=LONGEST_SIDE)
    except (DecodeError, OSError) as error:
        reason = error.reason if isinstance(error, DecodeError) else _trouble(error)
        return Html(f'<div class="noimage">image not shown: {safe(reason)}</div>')
    words = f"Chest radiograph of study {item.study_id}"
    return Html(f'<img alt="{safe(words)}" src="data:image/jpeg;base64,{encode(pixels)}">')


def _trouble(error: OSError) -> str:
    return "missing image" if isinstance(error, FileNotFoundError) else "corrupt image"


def _plain_picture(path: Path) -> np.ndarray | None:
    """An 8-bit PNG or JPEG without MONAI, whose import takes longer than the page; None for all else."""
    from PIL import Image, ImageOps

    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        return None
    with Image.open(path) as image:
        if image.mode not in ("L", "RGB"):
            return None
        return np.asarray(ImageOps.exif_transpose(image).convert("L"), dtype=np.float32) / 255


def encode(pixels: np.ndarray) -> str:
    """(H, W) in [0, 1] as a small greyscale JPEG in base64."""
    from PIL import Image

    image = Image.fromarray((np.clip(pixels, 0, 1) * 255).astype(np.uint8), mode="L")
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(out.getvalue()).decode("ascii")
