# SPDX-License-Identifier: Apache-2.0
"""A site's sketch of its knowledge graph: computed on request, reused while its data are the same (DD-9).

Texts, graph and key stay in this process; what is kept on disk is what may leave anyway. The difference of
two sketches would identify the few texts that came between them, so the site, not the server, decides how
often a new one leaves. No FLARE here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.sketch import Sketch
from medflare.data.load import load_cohort
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import BackboneConfig, SiteConfig
from medflare.egress.declaration import NEW_SKETCH, NO_SKETCH, SAME_SKETCH
from medflare.egress.failures import SiteSettingsError
from medflare.knowledge.cohort_texts import KnowledgeText, knowledge_texts
from medflare.knowledge.divergence import due_for_sketch
from medflare.knowledge.name_encoder import encoder_files
from medflare.knowledge.site_graph import site_sketch
from medflare.knowledge.sketch_key import SketchKey
from medflare.version import __version__
from medflare.wire.durable import read_json, write_json

LAST_SKETCH_FILE = "sketch_sent.json"
"""In the folder of local state: the last sketch of this run, of how many texts, and for which exchange."""
CACHE_FOLDER = "sketches"
"""In the site's cache: one sketch, named by the digest of what it was computed from."""
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class SketchRequest:
    """Request of the server for a sketch.

    Attributes:
        exchange: number of this exchange.
        held: the exchange from which the server has this site's sketch; None if it has none.
        growth: share by which the number of texts must change before a new sketch leaves (`due_for_sketch`).
    """

    exchange: int
    held: int | None
    growth: float


def sketch_facts(
    site: SiteConfig, state: Path, cache: Path, run_id: str, request: SketchRequest
) -> dict[str, Any]:
    """Return the site's answer to a request for a sketch.

    It holds `state`; with a sketch also its bytes in base64, the number of texts, and a keyed digest of the
    vocabulary.

    After the first sketch of a run another one leaves only if the number of texts has changed by a share
    above `request.growth` and the site's own `least_growth` (DD-9), or if the site has another key, kind or
    k. Until then a server that lacks the last sketch is sent that one again.

    Args:
        site: its settings; without `knowledge` there is no sketch.
        state: folder of the local state.
        cache: folder of what can be computed again.

    Raises:
        SiteSettingsError: the knowledge settings cannot be used; the text of the error stays at the site.
    """
    config = site.knowledge
    if config is None:
        return {"state": NO_SKETCH}
    texts = knowledge_texts(load_cohort(site))
    try:
        key = SketchKey.read(config.key, config.context)
        last = _last_sketch(state / LAST_SKETCH_FILE, run_id, key.fingerprint(config.kind, config.hashes))
        growth = max(config.least_growth, request.growth)
        if last is None or due_for_sketch(last["texts"], len(texts), growth):
            sketch = cached_sketch(config, texts, site.backbone, cache).to_bytes()
            last = {
                "texts": len(texts),
                "sketch": base64.b64encode(sketch).decode("ascii"),
                "vocabulary": key.vocabulary_digest(config.vocabulary, config.align),
            }
        elif request.held == last["exchange"]:
            return {"state": SAME_SKETCH}
    except ConfigError as error:
        raise SiteSettingsError(str(error)) from error
    write_json(state / LAST_SKETCH_FILE, {**last, "run_id": run_id, "exchange": request.exchange})
    facts = {"state": NEW_SKETCH, "sketch": last["sketch"], "examples": last["texts"]}
    return facts | ({"vocabulary": last["vocabulary"]} if "vocabulary" in last else {})


def _last_sketch(file: Path, run_id: str, fingerprint: bytes) -> dict[str, Any] | None:
    """Return the last sketch of this run; None before the first, and where it cannot be compared with a new
    one."""
    if not file.exists():
        return None
    last: dict[str, Any] = read_json(file)
    if last["run_id"] != run_id:
        return None
    sketch = Sketch.from_bytes(base64.b64decode(last["sketch"]), "of this folder")
    return last if sketch.fingerprint == fingerprint else None


def cached_sketch(
    config: KnowledgeConfig, texts: Sequence[KnowledgeText], backbone: BackboneConfig, cache: Path
) -> Sketch:
    """Return the sketch of these texts, from the cache where nothing that it depends on has changed."""
    folder = cache / CACHE_FOLDER
    file = folder / f"{sketch_digest(config, texts, backbone)}.sketch"
    if file.exists():
        try:
            return Sketch.from_bytes(file.read_bytes(), "of this cache")
        except UpdateError:
            file.unlink()
    sketch = site_sketch(config, texts, backbone)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.sketch"):
        old.unlink()
    scratch = file.with_suffix(".tmp")
    scratch.write_bytes(sketch.to_bytes())
    scratch.replace(file)
    return sketch


def sketch_digest(config: KnowledgeConfig, texts: Sequence[KnowledgeText], backbone: BackboneConfig) -> str:
    """Return the sha256 of all that a sketch depends on: settings, files, key, texts and version."""
    key = SketchKey.read(config.key, config.context).fingerprint(config.kind, config.hashes)
    settings = f"{config.model_dump_json()}|{backbone.model_dump_json()}"
    total = hashlib.sha256(f"{__version__}|{settings}|{key.hex()}".encode())
    for file in [*knowledge_files(config), *_model_files(config, backbone)]:
        total.update(f"|{file}|".encode())
        if file.is_file():
            with file.open("rb") as stream:
                while part := stream.read(CHUNK):
                    total.update(part)
    for text in texts:
        data = text.text.encode()
        total.update(bytes([text.of_patient]) + len(data).to_bytes(8, "big") + data)
    return total.hexdigest()


def knowledge_files(config: KnowledgeConfig) -> list[Path]:
    """Return every file that a graph is computed from beside the texts, sorted.

    Among them are the dictionaries of numbered triples, and the files of an encoder's folder that are read. A
    folder that does not exist is returned as it is.
    """
    named = set(_paths(config.model_dump())) - {config.key}
    if config.encoder is not None and config.encoder.is_dir():
        named = (named - {config.encoder}) | set(encoder_files(config.encoder))
    beside = {path for graph in config.triples for path in graph.path.parent.glob("*.dict")}
    return sorted(named | beside)


def _model_files(config: KnowledgeConfig, backbone: BackboneConfig) -> list[Path]:
    """Return the files of the site's language model, where the graph is extracted or aligned with it."""
    used = config.extractor == "model" or (config.nearest is not None and config.nearest_by == "backbone")
    if not used or backbone.folder is None or not backbone.folder.is_dir():
        return []
    return encoder_files(backbone.folder)


def _paths(value: Any) -> Iterator[Path]:
    """Yield every path among nested settings."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)
