# SPDX-License-Identifier: Apache-2.0
"""The frozen language model: embedded or from a local folder, in the precision the machine can do.

Every site must hold the same frozen weights; `fingerprint` is what the server compares before round 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from medflare.core.errors import ConfigError
from medflare.core.library_logs import quiet_bitsandbytes
from medflare.core.model_folders import check_folder
from medflare.core.site_description import EMBEDDED
from medflare.models.frozen_weights import LOADED
from medflare.models.layer_placement import place_layers

PRECISIONS = ("auto", "fp32", "bf16", "int8", "nf4")
LOADING = threading.Lock()
"""transformers' `from_pretrained` replaces functions of the process while it loads; two threads at once leave
them replaced, and every later model of the process comes without its tied weights. Its lazy imports are no
safer."""
PROCESSORS, INTEL = Path("/proc/cpuinfo"), "GenuineIntel"
PROMPT_FILE = "medflare_prompt.json"
"""In a model's folder: its own wording of prompts."""
WORDED = ("question_answering", "summarisation")
EMBEDDED_NAMES = {"decoder": EMBEDDED, "notes_decoder": f"{EMBEDDED}-notes"}
DEFAULT_TEMPLATE = {
    "prefix": "Human: <Img>",
    "suffix": "</Img> Conditions:",
    "instruction": " Write the findings of this chest X-ray.\nAssistant:",
}
"""Text around the image and the diagnosis tokens for real backbones (after R2GenGPT)."""


@dataclass(slots=True, kw_only=True)
class Backbone:
    """A frozen causal language model with its tokenizer.

    template: the texts `prefix`, `suffix`, `instruction` around image and diagnosis tokens.
    code_words: four words whose embeddings start the [BLA] [POS] [NEG] [UNC] rows, or None.
    condition_words: fourteen words whose embeddings mark the diagnosis tokens (frozen), or None: then only
        its place says which condition a diagnosis token is about, as in the paper.
    extraction: its own wording of extraction prompts (`ner`, `re`), or None for ours.
    wordings: its own wording of the prompts of WORDED tasks, where it has any.
    """

    model: Any
    tokenizer: Any
    name: str
    fingerprint: str
    precision: str
    template: dict[str, str]
    code_words: tuple[str, ...] | None
    condition_words: tuple[str, ...] | None
    extraction: dict[str, str] | None = None
    wordings: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def hidden(self) -> int:
        return int(self.model.config.hidden_size)


def load_backbone(
    folder: str | Path | None,
    precision: str = "auto",
    device: str = "cpu",
    embedded: Literal["decoder", "notes_decoder"] = "decoder",
    spread: int = 1,
) -> Backbone:
    """Load a backbone with all weights frozen and in eval mode.

    Args:
        folder: a local Hugging Face folder with safetensors weights; None for an embedded one.
        embedded: which: of chest X-ray reports, or of clinical notes.
        precision: `auto` is bf16 where the machine is faster in it (`bf16_is_fast`), else fp32.
        spread: GPUs over which the layers lie, the first of those that this process sees.

    Raises:
        ConfigError: the folder is missing or has no safetensors, the precision is unknown, or the layers
            cannot be spread.
    """
    with LOADING:
        return _load(folder, precision, device, embedded, spread)


def _load(
    folder: str | Path | None,
    precision: str,
    device: str,
    embedded: Literal["decoder", "notes_decoder"],
    spread: int,
) -> Backbone:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet_bitsandbytes()
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()

    from medflare.models.embedded import decoder_folder

    path = decoder_folder(embedded) if folder is None else Path(folder)
    check_folder(path)
    chosen = resolve_precision(precision, device)
    kwargs: dict[str, Any] = {"dtype": LOADED[chosen]}
    if chosen in ("int8", "nf4"):
        kwargs |= {"quantization_config": _quantisation(chosen), "device_map": device}
    if spread > 1:
        if device != "cpu" and torch.cuda.device_count() < spread:
            raise ConfigError(
                f"spread_layers: devices in site.yaml names {spread} GPUs, and torch sees "
                f"{torch.cuda.device_count()} of them. Name those that `nvidia-smi -L` lists."
            )
        devices = [device if device == "cpu" else f"{device}:{number}" for number in range(spread)]
        kwargs["device_map"] = place_layers(path, devices, chosen)
    model: Any = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, **kwargs)
    if "device_map" not in kwargs:
        model.to(device)
    _keep_gradients_right(model)
    model.requires_grad_(False)
    model.eval()
    settings = _prompt_settings(path)
    return Backbone(
        model=model,
        tokenizer=load_tokenizer(path),
        name=EMBEDDED_NAMES[embedded] if folder is None else path.name,
        fingerprint=fingerprint(path),
        precision=chosen,
        template=settings.get("template", DEFAULT_TEMPLATE),
        code_words=tuple(settings["code_words"]) if "code_words" in settings else None,
        condition_words=tuple(settings["condition_words"]) if "condition_words" in settings else None,
        extraction=settings.get("extraction"),
        wordings={task: dict(settings[task]) for task in WORDED if task in settings},
    )


def load_tokenizer(folder: Path) -> Any:
    """Open the tokenizer of a local folder."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence advice about weights that are new or left behind on purpose, such as a classifier's."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 over all weights, the shape of the network, the tokenizer and the prompt texts.

    Independent of how the weights are cut into files and of the precision they are loaded in.
    """
    from safetensors import safe_open

    rows: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - safe_open is no mapping
                tensor = weights.get_tensor(name).contiguous()
                digest = hashlib.sha256(tensor.view(-1).view(torch.uint8).numpy()).hexdigest()
                rows[name] = f"{tensor.dtype} {tuple(tensor.shape)} {digest}"
    total = hashlib.sha256(json.dumps(rows, sort_keys=True).encode())
    for name in ("tokenizer.json", "tokenizer.model", PROMPT_FILE):
        if (folder / name).is_file():
            total.update(name.encode() + (folder / name).read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version", "dtype")}
    total.update(json.dumps(kept, sort_keys=True).encode())
    return total.hexdigest()


def resolve_precision(precision: str, device: str) -> str:
    """Return a precision, `auto` as what this machine computes fast; ConfigError for an unknown name."""
    if precision not in PRECISIONS:
        raise ConfigError(f"backbone.precision is '{precision}'; expected one of {', '.join(PRECISIONS)}.")
    if precision != "auto":
        return precision
    return "bf16" if bf16_is_fast(device) else "fp32"


DEVICES = ("auto", "cpu", "cuda")
"""Values that a site's file or an option can ask for."""


def device_of(wanted: str) -> str:
    """Return cuda or cpu; `auto` is a GPU where there is one. ConfigError for another, or no GPU."""
    if wanted not in DEVICES:
        raise ConfigError(f"device '{wanted}': expected {', '.join(DEVICES)}.")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "a GPU is asked for (device: cuda, or numbers in `devices`), but torch sees no GPU here. Set "
            "`device: auto` or `cpu` in their place."
        )
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def bf16_is_fast(device: str) -> bool:
    """Return whether the device multiplies matrices faster in bf16 than in fp32.

    GPUs before Ampere (a T4, a V100) only emulate bf16, which torch counts as support unless it is asked.
    On processors, those that take AMX's tiles do (2.1 to 2.5 times as fast). Of those that only have
    instructions for bf16 (avx512_bf16), one of Intel's was half as fast in bf16; other makers' count as fast.
    """
    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return _supports("amx_tile") or (_supports("avx512_bf16") and INTEL not in _processor())


def _supports(instructions: str) -> bool:
    """Return whether torch says that this processor has them."""
    check = getattr(torch.cpu, f"_is_{instructions}_supported", None)
    return bool(check and check())


def _processor() -> str:
    """Return what Linux says of the first processor; nothing elsewhere."""
    return PROCESSORS.read_text(encoding="utf-8").split("\n\n")[0] if PROCESSORS.is_file() else ""


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """Return a context of bf16 arithmetic where the backbone's precision asks for it."""
    if LOADED.get(precision) == torch.bfloat16:
        return torch.autocast("cuda" if device.startswith("cuda") else "cpu", torch.bfloat16)
    return nullcontext()


def _prompt_settings(path: Path) -> dict[str, Any]:
    """Return the backbone's own prompt texts, where its folder carries them."""
    file = path / PROMPT_FILE
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _quantisation(precision: str) -> Any:
    from transformers import BitsAndBytesConfig

    if precision == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )


def _keep_gradients_right(model: nn.Module) -> None:
    """bitsandbytes 0.50 repacks 4-bit layers in eval mode on CPU; LoRA gradients are wrong afterwards.

    Measured in libraries.md 4: relative error 1.0 below the top layer; this flag turns the repacking off.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 - no attribute of nn.Module


def scaled_logits(logits: Tensor, config: Any) -> Tensor:
    """Scale or cap logits after the output layer as Granite, Cohere and Gemma-2 do."""
    if scaling := getattr(config, "logits_scaling", None):
        logits = logits / scaling
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits
