# SPDX-License-Identifier: Apache-2.0
"""Language models on this machine: added once, checked, and named in site.yaml (`backbone: {name: ...}`)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt, ValidationError

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from medflare.core.model_folders import FACTS_FILE, check_folder, check_model_name, models_root, stored_model
from medflare.models.backbone import PROMPT_FILE, fingerprint, load_backbone, load_tokenizer
from medflare.models.chat_template import ChatTurn, chat_turn
from medflare.models.gguf_file import convert, read_header
from medflare.models.plain_text import PlainText
from medflare.models.text_check import TextCheck, check_text
from medflare.wire.durable import write_json
from medflare.wire.memory import free_bytes

CONVERTED = 6
"""Bytes of memory for each weight while a GGUF file is converted (measured 4.7)."""
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

Wording = Callable[[ChatTurn], dict[str, Any]]
"""From a chat template to what medflare_prompt.json holds."""


class ModelFacts(Settings):
    """Facts recorded of a model when it is added: medflare_model.json in its folder."""

    name: str
    source: str = Field(description="file or folder it was made of, without its place")
    sha256: str = Field(description="of the GGUF file; of a folder, empty")
    quantisation: str = Field("", description="types of tensors in the GGUF file")
    architecture: str
    licence: str = Field("", description="as the file says; empty where it says nothing")
    fingerprint: str
    parameters: PositiveInt
    context: PositiveInt
    hidden: PositiveInt
    layers: PositiveInt
    chat_template: bool
    perplexity: PositiveFloat = Field(description="of a token of a short clinical text")
    shuffled_perplexity: PositiveFloat = Field(description="of the same words in another order")


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A model in its place, its facts, and how fast this machine is with it."""

    folder: Path
    facts: ModelFacts
    check: TextCheck


def add_model(
    source: Path,
    name: str | None,
    wording: Wording,
    *,
    own_wording: Mapping[str, Any] | None = None,
    untrained: bool = False,
    replace: bool = False,
) -> AddedModel:
    """Put a model among those of this machine: converted, with its wording, checked; or nothing at all.

    Args:
        source: a GGUF file, or a Hugging Face folder with safetensors, whose weights are linked, not copied.
        name: as site.yaml names it; by default that of the file or folder.
        wording: what medflare_prompt.json holds for a chat template, where the folder has none of its own.
        own_wording: blocks of medflare_prompt.json that count instead; each replaces texts, not the file.
        untrained: accept weights that predict no text.
        replace: put it in the place of another model of this name.

    Raises:
        ConfigError: what is wrong with the source or the name.
    """
    check_source(source)
    name = check_model_name(name or source.stem.lower() if source.is_file() else name or source.name.lower())
    target = models_root() / name
    if target.exists() and not (target / FACTS_FILE).is_file():
        raise ConfigError(f"'{target}' holds no model, and is not replaced. Give another --name, or move it.")
    if target.exists() and not replace:
        raise ConfigError(
            f"there is a model '{name}' already, in '{target}'. Give another --name or --replace."
        )
    with _scratch_folder(target) as folder:
        facts = {"name": name, "source": source.name, "sha256": ""}
        if source.is_file():
            header = read_header(source)
            facts |= {
                "sha256": sha256_of(source),
                "quantisation": header.quantisation,
                "licence": header.licence,
            }
            check_memory(source, CONVERTED * header.parameters)
            convert(source, folder)
        else:
            check_memory(source, sum(file.stat().st_size for file in source.glob("*.safetensors")))
            facts["licence"] = _licence_of(source)
            _link(source, folder)
        has_template = _write_wording(folder, wording, own_wording or {})
        model, check = check_model(folder)
        if not check.predicts and not untrained:
            raise ConfigError(
                f"'{source}' does not predict text: perplexity {check.perplexity:.1f}, and "
                f"{check.shuffled:.1f} with the words shuffled; expected less than half of it. The weights "
                "are untrained or damaged, or the tokenizer is another model's. To add it all the same: "
                "--untrained."
            )
        config = model.backbone.model.config
        recorded = ModelFacts(
            **facts,
            architecture=str(config.model_type),
            fingerprint=model.backbone.fingerprint,
            parameters=sum(weights.numel() for weights in model.backbone.model.parameters()),
            context=model.context,
            hidden=int(config.hidden_size),
            layers=int(config.num_hidden_layers),
            chat_template=has_template,
            perplexity=round(min(check.perplexity, 1e9), 2),
            shuffled_perplexity=round(min(check.shuffled, 1e9), 2),
        )
        write_json(folder / FACTS_FILE, recorded.model_dump())
    return AddedModel(target, recorded, check)


def read_facts(name: str) -> ModelFacts:
    """Return what was recorded of a model when it was added.

    Raises:
        ConfigError: there is no such model, or its record was damaged.
    """
    file = stored_model(name) / FACTS_FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{file}: no readable record ({error}). Add the model again, with --replace."
        ) from error
    return parse(ModelFacts, data if isinstance(data, dict) else {}, str(file))


def check_unchanged(name: str) -> ModelFacts:
    """Return a model's facts, once its weights, tokenizer and wording are known to be those that were added.

    Raises:
        ConfigError: something was changed since.
    """
    facts, folder = read_facts(name), stored_model(name)
    check_folder(folder)
    if (now := fingerprint(folder)) != facts.fingerprint:
        raise ConfigError(
            f"model '{name}' is not what was added: its fingerprint was {facts.fingerprint[:16]} and is "
            f"{now[:16]}. Its weights, tokenizer or {PROMPT_FILE} in '{folder}' changed. If you changed the "
            "wording on purpose, add the folder under another name; else add the model again, with --replace."
        )
    return facts


class ModelType(BaseModel):
    """Keys of a Hugging Face config.json that say which network it is; the rest is transformers' own."""

    model_type: str


def check_architecture(folder: Path) -> None:
    """Raise ConfigError where a folder's model is none that transformers opens as a language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    file = folder / "config.json"
    try:
        found = ModelType.model_validate_json(file.read_bytes()).model_type
    except ValidationError as error:
        raise ConfigError(
            f"{file}: {error.errors()[0]['msg']}; expected the config.json of a Hugging Face folder, "
            "which names its model_type. Copy the folder again."
        ) from None
    if found not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"'{folder}' holds a model of the architecture '{found}' (model_type in its config.json); "
            "expected a decoder that the installed transformers has, such as llama, qwen2, mistral or gemma."
        )


def check_model(folder: Path) -> tuple[PlainText, TextCheck]:
    """Load a folder as a site would, and measure it on a short text.

    Raises:
        ConfigError: it cannot be loaded.
    """
    try:
        backbone = load_backbone(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"'{folder.name}' cannot be opened as a language model: {error}") from error
    model = PlainText(backbone)
    return model, check_text(model)


def check_source(source: Path) -> None:
    """Raise ConfigError unless a source is a .gguf file or a folder with safetensors."""
    if source.is_dir():
        check_folder(source, "models add")
        if not (source / "config.json").is_file():
            raise ConfigError(f"'{source}' has no config.json; expected a Hugging Face folder.")
        check_architecture(source)
        return
    if not source.exists():
        hint = (
            " A name of a model on the internet is not looked up: download it, on a machine that may, and "
            "copy it here."
            if str(source).count("/") == 1
            else ""
        )
        raise ConfigError(f"there is no file or folder '{source}'.{hint}")
    if source.suffix in PICKLED:
        raise ConfigError(
            f"'{source}' is a pickle, which can run any program when it is opened, and is not loaded. "
            "Convert it to safetensors with transformers' save_pretrained, where you trust it."
        )
    if source.suffix != ".gguf":
        raise ConfigError(f"'{source}': expected a .gguf file or a Hugging Face folder with safetensors.")


def check_memory(source: Path, needed: float) -> None:
    """Raise ConfigError where so many bytes of memory are not free: a model is converted in memory."""
    if needed > (free := free_bytes()):
        raise ConfigError(
            f"adding '{source}' takes about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are "
            "free. End other programs, or add the model on a machine with more memory and copy its folder "
            f"from there ({models_root()})."
        )


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _scratch_folder(target: Path) -> Iterator[Path]:
    """Provide a folder that takes the place of `target` at the end, or goes again on any error."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    try:
        yield scratch
        for file in scratch.iterdir():
            if not file.is_symlink():
                file.chmod(0o644)  # safetensors writes for its user alone; workers may run as another
        if target.exists():
            shutil.rmtree(target)
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _licence_of(source: Path) -> str:
    """Return the licence that was recorded where a folder is itself a model that was added; else nothing."""
    try:
        recorded = json.loads((source / FACTS_FILE).read_text(encoding="utf-8"))
        return parse(ModelFacts, recorded, FACTS_FILE).licence
    except (OSError, ValueError, TypeError):
        return ""


def _link(source: Path, folder: Path) -> None:
    """Link a folder's weights and copy its small files, without those that only pickles could use.

    Weights that lie among the models of this machine get a second name, or are copied where the file system
    has none: that model may be replaced, even by the one that is being added.
    """
    root = models_root().resolve()
    for file in sorted(source.iterdir()):
        if file.suffix == ".safetensors":
            weights = file.resolve()
            if not weights.is_relative_to(root):
                (folder / file.name).symlink_to(weights)
                continue
            try:
                (folder / file.name).hardlink_to(weights)
            except OSError:
                shutil.copyfile(weights, folder / file.name)
        elif file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt"):
            shutil.copyfile(file, folder / file.name)
    (folder / FACTS_FILE).unlink(missing_ok=True)


def _write_wording(folder: Path, wording: Wording, given: Mapping[str, Any]) -> bool:
    """Write the wording of a folder's chat template, unless it has its own; say whether it has a template.

    Texts in `given` take the place of theirs.

    The end mark becomes the one that ends a reply in the template.
    """
    try:
        tokenizer = load_tokenizer(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the model's tokenizer cannot be opened: {error}") from error
    turn, file = chat_turn(tokenizer), folder / PROMPT_FILE
    if turn is not None and turn.end and turn.end != tokenizer.eos_token:
        tokenizer.eos_token = turn.end
        tokenizer.save_pretrained(folder)
    if file.is_file():
        texts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    else:
        texts = {} if turn is None else wording(turn)
    for block, content in given.items():
        nested = isinstance(content, Mapping)
        texts[block] = {**texts.get(block, {}), **content} if nested else content
    if texts:
        write_json(file, texts)
    return turn is not None
