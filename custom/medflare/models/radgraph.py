# SPDX-License-Identifier: Apache-2.0
"""RadGraph-XL from local weights: entities of a radiology report and the relations between them.

Jain et al., RadGraph, NeurIPS Datasets 2021; Delbrouck et al., RadGraph-XL, Findings of ACL 2024. The network
is DyGIE++ (Wadden et al., EMNLP 2019) without its parts for coreference and events, which RadGraph does not
use: every span of up to `max_span_width` words is classified, and pairs of the best spans too. Names of
tensors and files are those of the released archive, so that it is read as it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medflare.core.errors import ConfigError
from medflare.models.backbone import LOADING, load_tokenizer

NAME = "radgraph-xl"
"""Folder of the archive's files, and the data set in the names of its labels."""
WEIGHTS, CONFIG, LABELS = "weights.th", "config.json", "vocabulary"
BERT = "_embedder.token_embedder_bert._matched_embedder.transformer_model."
WORDS = re.compile(r"\w+|[^\w\s]+")
CUTS = ((").", ") ."), ("%.", "% ."), (".'", ". '"), ("%,", "% ,"), ("%)", "% )"))
"""Runs of marks that RadGraph-XL's training texts have apart, in the order in which they are cut."""
HELP = (
    "It is radgraph-xl.tar.gz of huggingface.co/StanfordAIMI/RRG_scorers, unpacked into radgraph-xl/, and "
    "beside it the folder of the BERT that its config.json names, with config.json and the tokenizer."
)


@dataclass(frozen=True, slots=True)
class RadGraphEntity:
    """An entity: its words, its label, and (label, place in the list) of each relation from it."""

    words: str
    label: str
    relations: tuple[tuple[str, int], ...]


def report_words(text: str) -> list[str]:
    """Return a report's words and marks, cut as RadGraph-XL's training texts are."""
    cut = " ".join(WORDS.findall(text))
    for run, parts in CUTS:
        cut = cut.replace(run, parts)
    return cut.split()


class RadGraph(nn.Module):
    """RadGraph-XL of a folder.

    Raises:
        ConfigError: a file is missing, or the weights have another layout; says what to put where.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        archive = folder / NAME
        given = _read_config(archive)
        model, embedder = given["model"], given["model"]["embedder"]["token_embedders"]["bert"]
        self.longest = int(embedder.get("max_length") or 512)
        self.most_words = int(model["max_span_width"])
        self.spans_per_word = float(model["modules"]["relation"]["spans_per_word"])
        self.entity_labels = _labels(archive, "ner_labels")[1:]
        self.relation_labels = _labels(archive, "relation_labels")
        bert = folder / str(embedder["model_name"]).rsplit("/", 1)[-1]
        if not (bert / CONFIG).is_file():
            raise ConfigError(
                f"{bert}: there is no {CONFIG} of the BERT that {archive / CONFIG} names. {HELP}"
            )
        self.tokenizer = load_tokenizer(bert)
        with LOADING:
            from transformers import AutoConfig, AutoModel

            config = AutoConfig.from_pretrained(bert, local_files_only=True)
            self.bert: Any = AutoModel.from_config(config)
        self.bert.pooler = None
        width = 2 * int(config.hidden_size) + int(model["feature_size"])
        shape = model["feedforward_params"]
        self.span_width = nn.Embedding(self.most_words, int(model["feature_size"]))
        self.entity, top = _feed_forward(width, shape)
        self.entity_scores = nn.Linear(top, len(self.entity_labels))
        self.pruner, top = _feed_forward(width, shape)
        self.pruner_scores = nn.Linear(top, 1)
        self.pair, top = _feed_forward(3 * width, shape)
        self.pair_scores = nn.Linear(top, len(self.relation_labels))
        self._load(archive / WEIGHTS)
        self.eval().requires_grad_(False)

    def _load(self, path: Path) -> None:
        """Copy the archive's tensors into the parts that have them."""
        stored = torch.load(path, map_location="cpu", weights_only=True)
        scorer, pruner = (
            f"_ner._ner_scorers.{NAME}__ner_labels",
            f"_relation._mention_pruners.{NAME}__relation_labels",
        )
        parts = {
            "bert.": BERT,
            "span_width.": "_endpoint_span_extractor._span_width_embedding.",
            "entity.": f"{scorer}.0._module._linear_layers.",
            "entity_scores.": f"{scorer}.1._module.",
            "pruner.": f"{pruner}._scorer.0._module._linear_layers.",
            "pruner_scores.": f"{pruner}._scorer.1._module.",
            "pair.": f"_relation._relation_feedforwards.{NAME}__relation_labels._linear_layers.",
            "pair_scores.": f"_relation._relation_scorers.{NAME}__relation_labels.",
        }
        state: dict[str, Tensor] = {}
        for name, tensor in self.state_dict().items():
            start = next(start for start in parts if name.startswith(start))
            source = parts[start] + name.removeprefix(start)
            found = stored.get(source)
            if found is None or found.shape != tensor.shape:
                shape = None if found is None else tuple(found.shape)
                raise ConfigError(
                    f"{path}: '{source}' has shape {shape}, expected {tuple(tensor.shape)}; it is no "
                    f"RadGraph-XL archive, or the BERT beside it is another one. {HELP}"
                )
            state[name] = found
        self.load_state_dict(state)

    # ---- one report --------------------------------------------------------------------------------------

    def words(self, words: Sequence[str]) -> Tensor:
        """Return one vector for each word, (W, hidden): the mean over its word pieces.

        A text longer than the encoder is read in parts, cut between words.
        """
        pieces = self.tokenizer(list(words), add_special_tokens=False)["input_ids"]
        begin, end, unknown = (getattr(self.tokenizer, f"{name}_token_id") for name in ("cls", "sep", "unk"))
        vectors: list[Tensor] = []
        part: list[list[int]] = []
        for ids in [*(row or [unknown] for row in pieces), None]:
            full = ids is not None and sum(map(len, part)) + len(ids) > self.longest - 2
            if part and (ids is None or full):
                row = torch.tensor([[begin, *(one for word in part for one in word), end]])
                hidden = self.bert(input_ids=row).last_hidden_state[0, 1:-1]
                vectors += [one.mean(0) for one in hidden.split([len(word) for word in part])]
                part = []
            if ids is not None:
                part.append(ids[: self.longest - 2])
        return torch.stack(vectors)

    @torch.no_grad()
    def read(self, text: str) -> list[RadGraphEntity]:
        """Return the entities of a report in the order of their spans; none of an empty one."""
        words = report_words(text)
        if not words:
            return []
        count, most = len(words), self.most_words
        spans = [(i, j) for i in range(count) for j in range(i, min(i + most, count))]
        first, last = torch.tensor(spans).T  # (N,), (N,)
        vectors = self.words(words)
        embedded = torch.cat([vectors[first], vectors[last], self.span_width(last - first)], 1)  # (N, D)
        scores = self.entity_scores(self.entity(embedded))
        labels = torch.cat([torch.zeros(len(spans), 1), scores], 1).argmax(1)  # (N,), 0 is no entity
        found = {spans[n]: self.entity_labels[int(labels[n]) - 1] for n in labels.nonzero()[:, 0].tolist()}
        places = {span: place for place, span in enumerate(found)}
        relations: dict[tuple[int, int], list[tuple[str, int]]] = {span: [] for span in found}
        for head, tail, label in self._relations(embedded, spans, count):
            if head in found and tail in found:
                relations[head].append((label, places[tail]))
        return [
            RadGraphEntity(" ".join(words[i : j + 1]), label, tuple(relations[i, j]))
            for (i, j), label in found.items()
        ]

    def _relations(
        self, embedded: Tensor, spans: Sequence[tuple[int, int]], words: int
    ) -> list[tuple[tuple[int, int], tuple[int, int], str]]:
        """Return (head, tail, label) of related spans among the best ones."""
        mention = self.pruner_scores(self.pruner(embedded))[:, 0]  # (N,)
        kept = mention.topk(min(math.ceil(words * self.spans_per_word), len(spans))).indices.sort().values
        best, size = embedded[kept], len(kept)
        one, other = best[:, None].expand(-1, size, -1), best[None].expand(size, -1, -1)
        pairs = self.pair_scores(self.pair(torch.cat([one, other, one * other], 2)))  # (K, K, labels)
        pairs = pairs + (mention[kept][:, None] + mention[kept][None])[..., None]
        labels = torch.cat([torch.zeros(size, size, 1), pairs], 2).argmax(2)  # 0 is no relation
        return [
            (spans[int(kept[i])], spans[int(kept[j])], self.relation_labels[int(labels[i, j]) - 1])
            for i, j in labels.nonzero().tolist()
        ]


def _feed_forward(width: int, shape: dict[str, Any]) -> tuple[nn.Sequential, int]:
    """Return the hidden layers of a scorer, whose tensors are numbered as the archive's, and their width."""
    count = int(shape["num_layers"])
    hidden = shape["hidden_dims"]
    widths = [width, *([hidden] * count if isinstance(hidden, int) else hidden)]
    return _Layers([nn.Linear(a, b) for a, b in pairwise(widths)]), widths[-1]


class _Layers(nn.Sequential):
    """Linear layers, each followed by a ReLU."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = torch.relu(layer(x))
        return x


def _read_config(archive: Path) -> dict[str, Any]:
    for name in (CONFIG, WEIGHTS, LABELS):
        if not (archive / name).exists():
            raise ConfigError(f"{archive}: there is no {name}. {HELP}")
    given: dict[str, Any] = json.loads((archive / CONFIG).read_text(encoding="utf-8"))
    return given


def _labels(archive: Path, kind: str) -> list[str]:
    """Return the labels of a kind by number; of entities the first is empty, no entity."""
    path = archive / LABELS / f"{NAME}__{kind}.txt"
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file. {HELP}")
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
