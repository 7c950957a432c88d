# SPDX-License-Identifier: Apache-2.0
"""A site's side of exact comparison: it tells how large its graph is, and compares it once with each partner.

Texts, graph and key stay in this process; encrypted elements leave, under a key of their own for each pair.
What a site has told in a run it keeps on disk, so that neither another request nor a restart gets a second
answer: sizes of two graphs that differ by one triple would tell that triple. No FLARE here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.tensors import State
from medflare.data.load import load_cohort
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.egress.declaration import COUNTED, FEW, MANY, NO_GRAPH, NO_PACKAGE, REQUEST, RESPONSE, SETUP
from medflare.egress.failures import SiteSettingsError
from medflare.knowledge.cardinality import (
    LEAST,
    MOST,
    Asker,
    Holder,
    available,
    elements,
    fingerprint,
)
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.texts import knowledge_texts
from medflare.wire.files import read_json, write_json

TOLD = "exact_told.json"
"""In the folder of local state: what this site said of its graph in this run, who its partners are, and with
whom it was compared."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the server asks of a site in a pair.

    Attributes:
        partner: the other site, which has `elements` of them; asks: whether this site is to learn the size of
            what both share, and otherwise answers.
    """

    partner: str
    elements: int
    asks: bool


class ExactSide:
    """One run's exact comparison at one site.

    Args:
        state: folder in which TOLD is kept.
    """

    def __init__(self, state: Path, run_id: str) -> None:
        self.file, self.run_id = state / TOLD, run_id
        self._items: list[str] | None = None
        self._open: tuple[Part, Asker | Holder] | None = None

    def count(self, site: Any, partners: Collection[str]) -> dict[str, Any]:
        """How many elements the site's graph has, of how many texts, under which key; or why it tells none.

        The first answer of a run is the answer; its `partners` are the only ones it compares its graph with.

        Args:
            site: its settings; without `knowledge` there is no graph.

        Raises SiteSettingsError where the knowledge settings cannot be used; its text stays at the site.
        """
        told = self._told()
        if told is None:
            told = {"facts": self._counted(site), "partners": sorted(partners), "compared": []}
            self._keep(told)
        return dict(told["facts"])

    def offer(self, site: Any, partners: Collection[str], part: Part) -> State:
        """The encrypted elements for a partner: a request, or a set-up.

        Raises UpdateError for a partner who was not there at the beginning, or was compared before.
        """
        told = self._agreed(partners, part)
        items = self._elements(site, told)
        self._keep({**told, "compared": [*told["compared"], part.partner]})
        if part.asks:
            asker = Asker(items)
            self._open = (part, asker)
            return {REQUEST: _tensor(asker.request())}
        holder = Holder(items)
        self._open = (part, holder)
        return {SETUP: _tensor(holder.setup(part.elements))}

    def answer(self, partner: str, tensors: Mapping[str, Tensor]) -> State:
        """The partner's elements encrypted twice; once."""
        _, side = self._side(partner)
        if not isinstance(side, Holder):
            raise UpdateError(f"'{partner}' is to answer in this pair, and sent no request.")
        return {RESPONSE: _tensor(side.response(_bytes(tensors, REQUEST)))}

    def compare(self, partner: str, tensors: Mapping[str, Tensor]) -> int:
        """How many elements both have."""
        part, side = self._side(partner)
        if not isinstance(side, Asker):
            raise UpdateError(f"'{partner}' learns the size of what is shared in this pair.")
        return side.shared(_bytes(tensors, SETUP), _bytes(tensors, RESPONSE), part.elements)

    def texts(self) -> int:
        """Of how many texts the graph is whose size was told in this run: each step's message is about them.

        A refusal of the site's policy comes after this side has counted, so the door asks for them each time.
        """
        return int(self._size_told()["facts"]["examples"])

    def _counted(self, site: Any) -> dict[str, Any]:
        config: KnowledgeConfig | None = getattr(site, "knowledge", None)
        if config is None:
            return {"state": NO_GRAPH}
        if not available():
            return {"state": NO_PACKAGE}
        texts, items = self._made(site, config)
        if 0 < len(items) < LEAST:
            return {"state": FEW}
        if len(items) > MOST:
            return {"state": MANY}
        self._items = items
        return {"state": COUNTED, "elements": len(items), "examples": texts, **_marks(config)}

    def _made(self, site: Any, config: KnowledgeConfig) -> tuple[int, list[str]]:
        """(number of texts, the elements of their graph)."""
        texts = knowledge_texts(load_cohort(site))
        try:
            key = SketchKey.read(config.key, config.context)
            return len(texts), elements(site_graph(config, texts, site.backbone), key)
        except ConfigError as error:
            raise SiteSettingsError(str(error)) from error

    def _elements(self, site: Any, told: Mapping[str, Any]) -> list[str]:
        """Those that were counted; made again after a restart."""
        if self._items is None:
            config: KnowledgeConfig | None = getattr(site, "knowledge", None)
            self._items = self._made(site, config)[1] if config is not None else []
        if len(self._items) != told["facts"]["elements"]:
            raise UpdateError("the site's graph has changed since its size was told in this run.")
        return self._items

    def _agreed(self, partners: Collection[str], part: Part) -> dict[str, Any]:
        """What was told in this run; UpdateError where the pair was not agreed."""
        told = self._size_told()
        if part.partner not in set(partners) & set(told["partners"]):
            raise UpdateError(f"'{part.partner}' was no partner when this site told the size of its graph.")
        if part.partner in told["compared"]:
            raise UpdateError(
                f"the graph was compared with that of '{part.partner}' in this run: once for each pair, as "
                "sizes of graphs that differ by a triple would tell it."
            )
        if not LEAST <= part.elements <= MOST:
            raise UpdateError(f"'{part.partner}' has {part.elements} elements; expected {LEAST} to {MOST}.")
        return told

    def _side(self, partner: str) -> tuple[Part, Asker | Holder]:
        """This site's side of the open pair, which is over then."""
        found, self._open = self._open, None
        if found is None or found[0].partner != partner:
            raise UpdateError(f"no comparison with '{partner}' is open here: over, or the site restarted.")
        return found

    def _size_told(self) -> dict[str, Any]:
        told = self._told()
        if told is None or told["facts"]["state"] != COUNTED:
            raise UpdateError("this site told no size of its graph in this run, and compares none.")
        return told

    def _told(self) -> dict[str, Any] | None:
        if not self.file.exists():
            return None
        told: dict[str, Any] = read_json(self.file)
        return told if told["run_id"] == self.run_id else None

    def _keep(self, told: Mapping[str, Any]) -> None:
        write_json(self.file, {**told, "run_id": self.run_id})


def _marks(config: KnowledgeConfig) -> dict[str, str]:
    """What must be equal at all sites: the key's fingerprint, and the digest of what gives concepts names."""
    try:
        key = SketchKey.read(config.key, config.context)
        return {"key": fingerprint(key), "vocabulary": key.vocabulary_digest(config.vocabulary, config.align)}
    except ConfigError as error:
        raise SiteSettingsError(str(error)) from error


def _tensor(message: bytes) -> Tensor:
    """(bytes,) uint8."""
    return torch.from_numpy(np.frombuffer(message, np.uint8).copy())


def _bytes(tensors: Mapping[str, Tensor], name: str) -> bytes:
    if name not in tensors:
        raise UpdateError(f"the message holds no {name}.")
    return bytes(tensors[name].numpy().tobytes())
