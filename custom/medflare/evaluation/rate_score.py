# SPDX-License-Identifier: Apache-2.0
"""RaTEScore: typed entities of two reports, matched by the likeness of their meanings.

Zhao et al., RaTEScore: A Metric for Radiology Report Generation, EMNLP 2024. Its two networks are local
folders: RaTE-NER-Deberta finds entities, BioLORD-2023-C turns them into vectors. Sentences are cut by our
rules and not by medspacy's, so that the last digits may differ from the authors' package.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from medflare.core.model_folders import check_folder
from medflare.labelling.labels import sentence_spans
from medflare.models.backbone import LOADING, load_tokenizer
from medflare.models.frozen_encoder import FrozenEncoder

ENTITIES, MEANINGS = "RaTE-NER-Deberta", "BioLORD-2023-C"
"""Folders of the two networks."""
TYPES = ("ABNORMALITY", "ANATOMY", "DISEASE", "NON-ABNORMALITY", "NON-DISEASE")
LONG_REPORTS = (
    (0.4276119164393705, 0.6240929990607657, 0.0034478181112993847, 0.5431049700217344, 0.27005425386213877),
    (0.7487824274337533, 0.2856134859160784, 0.4592143222158069, 0.02097055139911715, 0.00013736314126696204),
    (0.8396510075734789, 0.9950209388542061, 0.8460555030578727, 0.9820689020512646, 0.3789136708096537),
    (0.16546764653692908, 0.018670610691852826, 0.719397354576018, 0.0009357166071730684, 0.0927333564267591),
    (0.7759420231214385, 0.1839139293714062, 0.10073046076318157, 0.03860183811876373, 0.34065681486566446),
)
"""The published weights for long reports: type of an entity (row) and of its match (column), as TYPES."""
OPPOSED = 0.8716553966489615
"""Factor of a match where one side says that a finding is there and the other that it is not."""
WITHOUT_ENTITIES = 0.5
"""Score of a pair in which either text has no entity."""
TypedWords = tuple[str, str]
"""(words, one of TYPES)."""


class RaTEScore:
    """The two networks of a folder.

    Raises ConfigError as `check_folder` and `open_encoder` do.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForTokenClassification

        check_folder(folder / ENTITIES, "scorers.ratescore")
        self.tokenizer = load_tokenizer(folder / ENTITIES)
        with LOADING:
            self.tagger = AutoModelForTokenClassification.from_pretrained(
                folder / ENTITIES, local_files_only=True, dtype=torch.float32
            ).eval()
        self.meanings = FrozenEncoder(folder / MEANINGS, "scorers.ratescore")

    @torch.inference_mode()
    def entities(self, text: str) -> list[TypedWords]:
        """Return the entities of a text in order."""
        names: dict[int, str] = {int(n): name for n, name in self.tagger.config.id2label.items()}
        found: list[TypedWords] = []
        for start, end in sentence_spans(text):
            sentence = text[start:end]
            encoded = self.tokenizer(
                sentence, truncation=True, max_length=512, return_offsets_mapping=True, return_tensors="pt"
            )
            places = encoded.pop("offset_mapping")[0].tolist()
            labels = self.tagger(**encoded).logits[0].argmax(-1).tolist()
            tags = [
                (place[0], place[1], names[n])
                for place, n in zip(places, labels, strict=True)
                if place[0] < place[1]
            ]
            found += entities_of(sentence, tags)
        return found

    def vectors(self, entities: Sequence[TypedWords]) -> Tensor:
        """Return the unit vector of each entity's words, (n, hidden): the state of the first token."""
        rows = torch.zeros(len(entities), self.meanings.width)
        for batch in self.meanings.batches(self.meanings.ids([words for words, _ in entities]), 32):
            rows[batch.places] = batch.hidden[:, 0]
        return normalize(rows, dim=1)

    def scores(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """Return the score of each pair; an empty draft scores 0."""
        texts = dict.fromkeys([*references, *hypotheses])
        known = {text: self.entities(text) for text in texts}
        vectors = {text: self.vectors(found) for text, found in known.items()}
        scores = []
        for one, other in zip(references, hypotheses, strict=True):
            types = [[kind for _, kind in known[text]] for text in (one, other)]
            empty = not other.strip()
            scores.append(0.0 if empty else pair_score(vectors[one], vectors[other], types[0], types[1]))
        return scores


def entities_of(sentence: str, tags: Sequence[tuple[int, int, str]]) -> list[TypedWords]:
    """Return the entities that tags (start, end, B-, I- or O) of a sentence's tokens mark.

    An I- without a B- before it marks nothing; the type is that of the B-.
    """
    found: list[list[int | str]] = []
    inside = False
    for start, end, tag in tags:
        if tag.startswith("B-"):
            found.append([start, end, tag[2:].upper()])
        elif tag.startswith("I-") and inside:
            found[-1][1] = end
        inside = tag.startswith("B-") or (inside and tag.startswith("I-"))
    return [(sentence[int(a) : int(b)].strip(), str(kind)) for a, b, kind in found]


def pair_score(
    reference: Tensor, draft: Tensor, of_reference: Sequence[str], of_draft: Sequence[str]
) -> float:
    """Return the harmonic mean of both directions.

    Args:
        reference, draft: (n, hidden) and (m, hidden) of unit norm; `of_reference`, `of_draft` their types.
    """
    if not len(reference) or not len(draft):
        return WITHOUT_ENTITIES
    one = _matched(reference, draft, of_reference, of_draft)
    other = _matched(draft, reference, of_draft, of_reference)
    return 2 * one * other / (one + other) if one + other else 0.0


def _matched(entities: Tensor, others: Tensor, types: Sequence[str], other_types: Sequence[str]) -> float:
    """Return the weighted mean likeness of each entity and its nearest one on the other side."""
    best = (entities @ others.T).max(1)
    kinds = [other_types[int(place)] for place in best.indices]
    weights = np.array(
        [LONG_REPORTS[TYPES.index(a)][TYPES.index(b)] for a, b in zip(types, kinds, strict=True)]
    )
    factors = np.array([OPPOSED if _opposed(a, b) else 1.0 for a, b in zip(types, kinds, strict=True)])
    total = float(weights.sum())
    return float((best.values.numpy() * weights * factors).sum()) / total if total else 0.0


def _opposed(one: str, other: str) -> bool:
    """Return whether one is a finding and the other the absence of one."""
    if "ANATOMY" in (one, other):
        return False
    return one.startswith("NON-") != other.startswith("NON-")
