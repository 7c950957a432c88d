# SPDX-License-Identifier: Apache-2.0
"""Notes with annotated and extracted entities in the text, and each entity's modifiers below it.

Notes are taken at fixed ranks of agreement, good and bad ones alike. Only notes whose text the predictions
file holds can be shown: sites write it, files that were passed on may lack it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from medflare.evaluation.extraction_matching import Counts, set_counts
from medflare.evaluation.extraction_predictions import Link, Mention, ScoredDocument, read_documents
from medflare.reporting.gallery import at_ranks
from medflare.reporting.gallery_marks import (
    Mark,
    judge,
    key_of_signs,
    marked_text,
    sign_of,
    title_of,
    words_of,
)
from medflare.reporting.html import Html, details, paragraph, safe, table

ADAPTERS = ("personalised", "generic", "none")
WITHOUT_TEXT = (
    "{} of {} predictions files hold offsets and types and no words of the notes; these notes are not shown."
)

Found = Sequence[tuple[Path, list[ScoredDocument]]]


def readable(path: Path) -> list[ScoredDocument]:
    """The notes of a predictions file that can be shown: those with their text."""
    return [item for item in read_documents(path) if item.text is not None]


def notes_section(found: Found, notes: int) -> Html:
    """Up to `notes` notes of every site."""
    if not found or notes < 1:
        return Html("")
    by_site: dict[str, dict[str, dict[str, ScoredDocument]]] = {}
    for _, items in found:
        for item in items:
            by_site.setdefault(item.site, {}).setdefault(item.note_id, {})[item.adapter] = item
    bare = sum(not items for _, items in found)
    remark = paragraph(WITHOUT_TEXT.format(bare, len(found)), "soft") if bare else Html("")
    if not by_site:
        return remark
    parts = [
        remark,
        paragraph(
            "Notes stand at fixed ranks of agreement between annotation and extraction, from good to bad; "
            "none was chosen by hand. Modifiers are those found for the annotated entities. An arrow "
            "leads from what was annotated to what was extracted."
        ),
        key_of_signs(),
    ]
    for site, each in sorted(by_site.items()):
        chosen = pick([_main(adapters) for adapters in each.values()], notes)
        cards = "".join(_card(each[item.note_id]) for item in chosen)
        parts.append(details(f"{site}: {len(chosen)} of {len(each)} notes", cards, kind="site", opened=True))
    return Html("".join(parts))


def _main(adapters: dict[str, ScoredDocument]) -> ScoredDocument:
    """The adapter a site would use: its own where it has one."""
    return next(adapters[kind] for kind in ADAPTERS if kind in adapters)


def pick(items: Sequence[ScoredDocument], number: int) -> list[ScoredDocument]:
    """`number` notes at evenly spaced ranks of agreement, best first; those in which something is marked."""
    telling = [item for item in items if any(map(any, agreement(item).values()))]
    ranked = sorted(telling or items, key=lambda item: (-_f1(item), item.note_id))
    return at_ranks(ranked, number)


def agreement(item: ScoredDocument) -> dict[str, Counts]:
    """Strict counts of one note's entities and of its annotated entities' modifiers, as far as asked."""
    found = {}
    if "ner" in item.tasks and item.predicted_entities is not None:
        found["entities"] = set_counts(*(_looked_for(item, s) for s in _entities(item)))
    if "re" in item.tasks and item.links_gold_heads is not None:
        ours, theirs = item.gold_links, item.links_gold_heads
        found["modifiers"] = set_counts(_links_looked_for(item, ours), _links_looked_for(item, theirs))
    return found


def _f1(item: ScoredDocument) -> float:
    return Counts(*(sum(part) for part in zip((0, 0, 0), *agreement(item).values(), strict=True))).ratios[2]


def _entities(item: ScoredDocument) -> tuple[Sequence[Mention], Sequence[Mention]]:
    return item.gold_entities, item.predicted_entities or ()


def _looked_for(item: ScoredDocument, mentions: Iterable[Mention]) -> list[Mention]:
    """Mentions of the types that the annotators looked for; only these are scored."""
    return [m for m in mentions if item.annotated is None or m.label in item.annotated]


def _links_looked_for(item: ScoredDocument, links: Iterable[Link]) -> list[Link]:
    return [link for link in links if item.annotated is None or link.modifier.label in item.annotated]


def _card(adapters: dict[str, ScoredDocument]) -> Html:
    item = _main(adapters)
    patient = f", patient {item.patient_id}" if item.patient_id else ""
    others = [adapters[kind] for kind in ADAPTERS if kind in adapters and kind != item.adapter]
    more = "".join(
        details(f"What the {other.adapter} adapter extracted", _extracted(other)) for other in others
    )
    return Html(
        f'<article class="note"><h4>Note {safe(item.note_id)}{safe(patient)}</h4>'
        f"{_extracted(item)}{more}</article>"
    )


def _extracted(item: ScoredDocument) -> Html:
    """Score, text and modifiers of what one adapter made of a note."""
    counts = agreement(item)
    told = [f"{c.tp} of {c.gold} {name} found, {c.fp} wrong" for name, c in counts.items()]
    name = f", {item.adapter} adapter" if item.adapter != "none" else ""
    score = paragraph(f"{'; '.join(told) or 'nothing to compare'}; F1 {100 * _f1(item):.0f}{name}.", "why")
    text = item.text or ""
    marks = _entity_marks(item)
    shown = f'<blockquote tabindex="0" aria-label="Text of the note">{marked_text(text, marks)}</blockquote>'
    return Html(score + shown + _modifiers(item, text))


def _entity_marks(item: ScoredDocument) -> list[Mark]:
    """What to mark; the annotated entities alone where the model was not asked for entities."""
    ours, theirs = (_looked_for(item, side) for side in _entities(item))
    asked = "entities" in agreement(item)
    return judge(ours, theirs) if asked else [Mark(mention, mention) for mention in ours]


def _modifiers(item: ScoredDocument, text: str) -> Html:
    """One row for each annotated entity that has a modifier on either side."""
    if "modifiers" not in agreement(item):
        return Html(paragraph("Modifiers were not asked for or are not annotated in this note.", "why"))
    sides = [
        _by_head(_links_looked_for(item, links)) for links in (item.gold_links, item.links_gold_heads or ())
    ]
    heads = sorted({head for side in sides for head in side}, key=lambda head: (head.spans, head.label))
    rows = []
    for head in heads:
        marks = judge(*(side.get(head, []) for side in sides))
        name = Html(f"{safe(words_of(head, text))} <small>{safe(head.label)}</small>")
        rows.append([name, Html(f'<ul class="chips">{"".join(_chip(m, text) for m in marks)}</ul>')])
    bare = len(set(item.gold_entities) - set(heads))
    note = f"{bare} annotated {'entity' if bare == 1 else 'entities'} without modifiers on either side."
    body = table(["entity", "modifiers"], rows, left=2, kind="modifiers") if rows else ""
    return Html(body + (paragraph(note, "why") if bare else ""))


def _by_head(links: Iterable[Link]) -> dict[Mention, list[Mention]]:
    found: dict[Mention, list[Mention]] = {}
    for link in links:
        found.setdefault(link.head, []).append(link.modifier)
    return found


def _chip(mark: Mark, text: str) -> str:
    words = " → ".join(dict.fromkeys(words_of(side, text) for side in mark.sides))
    return (
        f'<li class="m {mark.kind}" title="{safe(title_of(mark, text))}">'
        f"{sign_of(mark.kind)} {safe(mark.label)} <b>{safe(words)}</b></li>"
    )
