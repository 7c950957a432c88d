# SPDX-License-Identifier: Apache-2.0
"""Notes with annotated and extracted entities in the text, and each entity's modifiers below it.

Only notes whose text the predictions file holds can be shown: sites write it, files that were passed on may
lack it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.evaluation.agreement import annotated_links, annotated_mentions, note_agreement, note_counts
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument
from medflare.evaluation.mention_pairs import MentionPair, pair_mentions
from medflare.reporting.galleries.common import (
    ADAPTERS,
    Files,
    SiteCards,
    at_ranks,
    main_adapter,
    records_by_site,
)
from medflare.reporting.galleries.marks import key_of_signs, mark_text, modifier_chip, words_of
from medflare.reporting.views import Cell, Table
from medflare.tasks.prediction_files import read_documents


def read_notes(path: Path) -> list[ScoredDocument]:
    """Return the notes of a predictions file that can be shown: those with their text."""
    return [item for item in read_documents(path) if item.text is not None]


def view(files: Files, number: int) -> dict[str, Any] | None:
    """Return the data of `gallery_notes.html`: up to `number` notes of every site; None without any file."""
    if not files or number < 1:
        return None
    sites = []
    for site, notes in records_by_site(files, lambda item: item.note_id).items():
        chosen = pick([main_adapter(adapters)[1] for adapters in notes.values()], number)
        cards = [_card(notes[item.note_id]) for item in chosen]
        sites.append(SiteCards(title=f"{site}: {len(chosen)} of {len(notes)} notes", cards=cards))
    without_text = sum(not items for _, items in files)
    return {"files": len(files), "without_text": without_text, "signs": key_of_signs(), "sites": sites}


def pick(items: Sequence[ScoredDocument], number: int) -> list[ScoredDocument]:
    """Return `number` notes at evenly spaced ranks of agreement, best first.

    Those in which something is marked, if there are any.
    """
    telling = [item for item in items if any(map(any, note_counts(item).values()))]
    ranked = sorted(telling or items, key=lambda item: (-note_agreement(item), item.note_id))
    return at_ranks(ranked, number)


def _card(adapters: Mapping[str, tuple[Path, ScoredDocument]]) -> dict[str, Any]:
    item = main_adapter(adapters)[1]
    patient = f", patient {item.patient_id}" if item.patient_id else ""
    others = [adapters[name][1] for name in ADAPTERS if name in adapters and name != item.adapter]
    return {
        "title": f"Note {item.note_id}{patient}",
        "extracted": _extracted(item),
        "others": [
            {"summary": f"What the {other.adapter} adapter extracted", "extracted": _extracted(other)}
            for other in others
        ],
    }


def _extracted(item: ScoredDocument) -> dict[str, Any]:
    """Return score, text and modifiers of what one adapter made of a note."""
    counts = note_counts(item)
    parts = [f"{c.tp} of {c.gold} {name} found, {c.fp} wrong" for name, c in counts.items()]
    adapter = f", {item.adapter} adapter" if item.adapter != "none" else ""
    score = f"{'; '.join(parts) or 'nothing to compare'}; F1 {100 * note_agreement(item):.0f}{adapter}."
    text = item.text or ""
    return {"score": score, "text": mark_text(text, _entity_pairs(item)), **_modifiers(item, text)}


def _entity_pairs(item: ScoredDocument) -> list[MentionPair]:
    """Return what to mark; the annotated entities alone where the model was not asked for entities."""
    gold = annotated_mentions(item, item.gold_entities)
    if "entities" not in note_counts(item):
        return [MentionPair(mention, mention) for mention in gold]
    return pair_mentions(gold, annotated_mentions(item, item.predicted_entities or ()))


def _modifiers(item: ScoredDocument, text: str) -> dict[str, Any]:
    """Return one row for each annotated entity that has a modifier on either side."""
    if "modifiers" not in note_counts(item):
        remark = "Modifiers were not asked for or are not annotated in this note."
        return {"modifiers": None, "remark": remark}
    sides = [
        _by_head(annotated_links(item, links)) for links in (item.gold_links, item.links_gold_heads or ())
    ]
    heads = sorted({head for side in sides for head in side}, key=lambda head: (head.spans, head.label))
    rows = []
    for head in heads:
        pairs = pair_mentions(*(side.get(head, []) for side in sides))
        name = Cell(text=words_of(head, text), small=head.label)
        rows.append([name, Cell(chips=[modifier_chip(pair, text) for pair in pairs])])
    bare = len(set(item.gold_entities) - set(heads))
    noun = "entity" if bare == 1 else "entities"
    remark = f"{bare} annotated {noun} without modifiers on either side." if bare else ""
    table = Table(head=["entity", "modifiers"], rows=rows, left=2, style="modifiers") if rows else None
    return {"modifiers": table, "remark": remark}


def _by_head(links: Iterable[Link]) -> dict[EntityMention, list[EntityMention]]:
    heads: dict[EntityMention, list[EntityMention]] = {}
    for link in links:
        heads.setdefault(link.head, []).append(link.modifier)
    return heads
