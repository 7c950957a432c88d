# SPDX-License-Identifier: Apache-2.0
"""A site's side of the exact comparison of knowledge graphs (DD-3): its size, then pairs.

Texts, graph and key stay in this process; encrypted elements leave, under a key of their own for each pair.
The site keeps its answers of a run on disk, so that neither another request nor a restart gets a second one:
the sizes of two graphs that differ by one triple would reveal that triple. No FLARE here.
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
from medflare.data.settings.site import SiteConfig
from medflare.egress.declaration import COUNTED, FEW, MANY, NO_GRAPH, NO_PACKAGE, REQUEST, RESPONSE, SETUP
from medflare.egress.failures import SiteSettingsError
from medflare.knowledge.cohort_texts import knowledge_texts
from medflare.knowledge.private_intersection import (
    LEAST,
    MOST,
    IntersectionClient,
    IntersectionServer,
    available,
    fingerprint,
    keyed_elements,
)
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.sketch_key import SketchKey
from medflare.wire.durable import read_json, write_json

ANSWERS_FILE = "exact_told.json"
"""In the folder of local state: the size stated in this run, the partners, and those already compared with.
"""


@dataclass(frozen=True, slots=True)
class PairRequest:
    """Request of the server to one site of a pair.

    Attributes:
        partner: the other site.
        elements: number of elements the partner stated.
        learns_size: whether this site learns the size of what both share; otherwise it answers the partner's
            request.
    """

    partner: str
    elements: int
    learns_size: bool


class ExactSide:
    """One run's exact comparison at one site.

    Args:
        state: folder of the local state, in which ANSWERS_FILE is kept.
        run_id: answers of another run count as none.
    """

    def __init__(self, state: Path, run_id: str) -> None:
        self.file, self.run_id = state / ANSWERS_FILE, run_id
        self._items: list[str] | None = None
        self._asking: tuple[PairRequest, IntersectionClient] | None = None
        self._answering: tuple[PairRequest, IntersectionServer] | None = None

    def count(self, site: SiteConfig, partners: Collection[str]) -> dict[str, Any]:
        """Return the number of elements of the site's graph and of its texts, or why there is none.

        The first answer of a run is repeated to the end of the run; its `partners` are the only sites that
        the graph is compared with.

        Args:
            site: its settings; without `knowledge` there is no graph.
            partners: the other sites of the run.

        Raises:
            SiteSettingsError: the knowledge settings cannot be used; the text of the error stays at the site.
        """
        answers = self._answers()
        if answers is None:
            answers = {"facts": self._size_facts(site), "partners": sorted(partners), "compared": []}
            self._save(answers)
        return dict(answers["facts"])

    def offer(self, site: SiteConfig, partners: Collection[str], pair: PairRequest) -> State:
        """Return the site's elements, encrypted for a partner: uint8 (bytes,).

        They are a request where this site learns the size of what is shared, and a set-up where it answers.

        Raises:
            UpdateError: the pair was not agreed on when the size was stated, or was compared before.
        """
        answers = self._check_pair(partners, pair)
        items = self._elements(site, answers)
        # Saved before anything leaves: a crash then costs the pair and never allows a second comparison.
        self._save({**answers, "compared": [*answers["compared"], pair.partner]})
        if pair.learns_size:
            client = IntersectionClient(items)
            self._asking, self._answering = (pair, client), None
            return {REQUEST: _tensor(client.request())}
        server = IntersectionServer(items)
        self._asking, self._answering = None, (pair, server)
        return {SETUP: _tensor(server.setup(pair.elements))}

    def answer(self, partner: str, tensors: Mapping[str, Tensor]) -> State:
        """Return the partner's elements, encrypted a second time; once for each pair.

        Raises:
            UpdateError: no pair with this partner is open, or this site is the one that learns the size.
        """
        _, answering = self._close_pair(partner)
        if answering is None:
            raise UpdateError(f"'{partner}' is to answer in this pair, and sent no request.")
        return {RESPONSE: _tensor(answering[1].response(_bytes(tensors, REQUEST)))}

    def compare(self, partner: str, tensors: Mapping[str, Tensor]) -> int:
        """Return how many elements both graphs have.

        Raises:
            UpdateError: no pair with this partner is open, or the partner is the one that learns the size.
        """
        asking, _ = self._close_pair(partner)
        if asking is None:
            raise UpdateError(f"'{partner}' learns the size of what is shared in this pair.")
        pair, client = asking
        return client.shared(_bytes(tensors, SETUP), _bytes(tensors, RESPONSE), pair.elements)

    def texts(self) -> int:
        """Return the number of texts of the graph whose size was stated in this run.

        Every message of a pair is about them. A refusal by the site's policy comes after this side has
        counted, so the egress chain checks the number for each message.
        """
        return int(self._stated_size()["facts"]["examples"])

    def _size_facts(self, site: SiteConfig) -> dict[str, Any]:
        config = site.knowledge
        if config is None:
            return {"state": NO_GRAPH}
        if not available():
            return {"state": NO_PACKAGE}
        texts, items = self._extract(site, config)
        if 0 < len(items) < LEAST:
            return {"state": FEW}
        if len(items) > MOST:
            return {"state": MANY}
        self._items = items
        return {"state": COUNTED, "elements": len(items), "examples": texts, **_digests(config)}

    def _extract(self, site: SiteConfig, config: KnowledgeConfig) -> tuple[int, list[str]]:
        """Return (number of texts, the elements of their graph)."""
        texts = knowledge_texts(load_cohort(site))
        try:
            key = SketchKey.read(config.key, config.context)
            return len(texts), keyed_elements(site_graph(config, texts, site.backbone), key)
        except ConfigError as error:
            raise SiteSettingsError(str(error)) from error

    def _elements(self, site: SiteConfig, answers: Mapping[str, Any]) -> list[str]:
        """Return the elements that were counted, extracted again after a restart.

        Raises:
            UpdateError: the data have changed since, so the number is another one.
        """
        if self._items is None:
            self._items = self._extract(site, site.knowledge)[1] if site.knowledge is not None else []
        if len(self._items) != answers["facts"]["elements"]:
            raise UpdateError("the site's graph has changed since its size was told in this run.")
        return self._items

    def _check_pair(self, partners: Collection[str], pair: PairRequest) -> dict[str, Any]:
        """Return the answers of this run.

        Raises:
            UpdateError: this pair was not agreed on, was compared before, or is too small or too large.
        """
        answers = self._stated_size()
        if pair.partner not in set(partners) & set(answers["partners"]):
            raise UpdateError(f"'{pair.partner}' was no partner when this site told the size of its graph.")
        if pair.partner in answers["compared"]:
            raise UpdateError(
                f"the graph was compared with that of '{pair.partner}' in this run: once for each pair, as "
                "sizes of graphs that differ by a triple would tell it."
            )
        if not LEAST <= pair.elements <= MOST:
            raise UpdateError(f"'{pair.partner}' has {pair.elements} elements; expected {LEAST} to {MOST}.")
        return answers

    def _close_pair(
        self, partner: str
    ) -> tuple[tuple[PairRequest, IntersectionClient] | None, tuple[PairRequest, IntersectionServer] | None]:
        """Return the open pair as the side that asks or the one that answers, the other None, and close it.

        Its key must never be used twice.
        """
        asking, answering = self._asking, self._answering
        self._asking = self._answering = None
        opened = asking or answering
        if opened is None or opened[0].partner != partner:
            raise UpdateError(f"no comparison with '{partner}' is open here: over, or the site restarted.")
        return asking, answering

    def _stated_size(self) -> dict[str, Any]:
        answers = self._answers()
        if answers is None or answers["facts"]["state"] != COUNTED:
            raise UpdateError("this site told no size of its graph in this run, and compares none.")
        return answers

    def _answers(self) -> dict[str, Any] | None:
        """Return the answers of this run from the file; None before the first."""
        if not self.file.exists():
            return None
        answers: dict[str, Any] = read_json(self.file)
        return answers if answers["run_id"] == self.run_id else None

    def _save(self, answers: Mapping[str, Any]) -> None:
        write_json(self.file, {**answers, "run_id": self.run_id})


def _digests(config: KnowledgeConfig) -> dict[str, str]:
    """Return what must be equal at all sites: digests of the key and of the concepts' vocabulary."""
    try:
        key = SketchKey.read(config.key, config.context)
        return {"key": fingerprint(key), "vocabulary": key.vocabulary_digest(config.vocabulary, config.align)}
    except ConfigError as error:
        raise SiteSettingsError(str(error)) from error


def _tensor(message: bytes) -> Tensor:
    """Return a message as uint8 tensor (bytes,)."""
    return torch.from_numpy(np.frombuffer(message, np.uint8).copy())


def _bytes(tensors: Mapping[str, Tensor], name: str) -> bytes:
    if name not in tensors:
        raise UpdateError(f"the message holds no {name}.")
    return bytes(tensors[name].numpy().tobytes())
