# SPDX-License-Identifier: Apache-2.0
"""Virtual tokens before the input of a frozen decoder: PEFT's prompt encoders, applied by two hooks.

PEFT adds virtual tokens in the wrapper's `forward` and `generate`, which know no image tokens
(`inputs_embeds` in `generate` is refused) and no decoder that is called without its output layer. Hooks on
the decoder serve training, scoring and generation alike; the added positions are removed from the output.
"""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.seeds import seeded
from medflare.models.adapters.base import AdapterSet

PROMPT = "prompt_embeddings"
"""PEFT's name of what its files hold."""


def cache_argument(kwargs: Mapping[str, Any]) -> str:
    """Return the name by which a decoder is called with keys and values of earlier tokens.

    transformers calls it `cache` since 5.24 and `past_key_values` before; a caller of ours may use the old
    name with both.
    """
    return "cache" if "cache" in kwargs else "past_key_values"


class VirtualTokens(AdapterSet):
    """One adapter of virtual tokens on a frozen decoder.

    Raises:
        ConfigError: more than one adapter, or as many virtual tokens as the model has positions.
    """

    def __init__(self, model: Any, settings: Any, names: Iterable[str], seed: int) -> None:
        from peft import get_peft_model

        self.settings, self.names = settings, tuple(names)
        if len(self.names) != 1:
            raise ConfigError(f"peft.method '{settings.method}' can have one adapter, not {len(self.names)}.")
        room = int(getattr(model.config, "max_position_embeddings", None) or sys.maxsize)
        if settings.tokens >= room:
            raise ConfigError(
                f"peft.tokens is {settings.tokens}, and this base model has {room} positions for virtual "
                "tokens, prompt and answer. Set peft.tokens to a fraction of that."
            )
        self.config = self.peft_config(int(model.config.hidden_size))
        with seeded(seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
            self.peft: Any = get_peft_model(model, self.config, adapter_name=self.names[0])
        self.encoder: Any = self.peft.prompt_encoder[self.names[0]]
        self.active = True
        self._added = 0
        decoder = model.get_decoder()
        decoder.register_forward_pre_hook(self._before, with_kwargs=True)
        decoder.register_forward_hook(self._after)
        self.use(self.names)

    @abstractmethod
    def peft_config(self, hidden: int) -> Any:
        """Return PEFT's configuration for a decoder of that hidden size."""

    @property
    def positions(self) -> int:
        return int(self.settings.tokens)

    # ---- in the decoder ----------------------------------------------------------------------------------

    def _before(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Add V virtual tokens to the decoder's arguments at the first call of a sequence.

        The mask grows by V columns at every call, since cached keys hold the virtual tokens too; positions
        move by V.
        """
        if not self.active:
            return None
        kwargs = dict(kwargs)
        if args:
            kwargs["input_ids"] = args[0]
        cache = kwargs.get(cache_argument(kwargs))
        first = cache is None or cache.get_seq_length() == 0
        given = kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else kwargs["input_ids"]
        batch, tokens = given.shape[0], self.positions
        if kwargs.get("attention_mask") is not None:
            visible = kwargs["attention_mask"].new_ones(batch, tokens)  # (B, V)
            kwargs["attention_mask"] = torch.cat([visible, kwargs["attention_mask"]], 1)  # (B, V + T)
        for name in ("position_ids", "cache_position"):
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name] + tokens
        if first:
            self._insert(decoder, kwargs, batch)
        return (), kwargs

    def _insert(self, decoder: Any, kwargs: dict[str, Any], batch: int) -> None:
        """Put the virtual tokens before the embeddings (B, T, H)."""
        embedded = kwargs.get("inputs_embeds")
        if embedded is None:
            embedded = decoder.get_input_embeddings()(kwargs.pop("input_ids"))  # (B, T, H)
        prompt = self.peft.get_prompt(batch).to(embedded.dtype)  # (B, V, H)
        kwargs["inputs_embeds"] = torch.cat([prompt, embedded], 1)  # (B, V + T, H)
        self._added = self.positions
        for name in ("position_ids", "cache_position"):
            if (places := kwargs.get(name)) is not None:
                ahead = torch.arange(self.positions, device=places.device).expand(*places.shape[:-1], -1)
                kwargs[name] = torch.cat([ahead, places], -1)

    def _after(self, decoder: Any, args: Any, output: Any) -> Any:
        """Remove the virtual tokens' hidden states: (B, V + T, H) -> (B, T, H)."""
        if self._added:
            output.last_hidden_state = output.last_hidden_state[:, self._added :]
            self._added = 0
        return output

    # ---- the adapter -------------------------------------------------------------------------------------

    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        """Set whether the virtual tokens are there, and whether they learn."""
        self.active = bool(tuple(active))
        for parameter in self.encoder.parameters():
            parameter.requires_grad_(bool(set(train)))

    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """Return the embeddings, and with P-tuning the layers behind them."""
        return list(self.encoder.parameters())

    def shared_parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Return the parameters by PEFT's own names where one tensor is all, else by the prompt encoder's."""
        named = dict(self.encoder.named_parameters())
        return {PROMPT: named["embedding.weight"]} if len(named) == 1 else named

    def file_tensors(self, name: str) -> dict[str, Tensor]:
        """Return what PEFT's file of this adapter holds."""
        return virtual_token_file(self.state(name))

    def config_dict(self) -> dict[str, Any]:
        config = self.config.to_dict() | {"inference_mode": True}
        return {key: getattr(value, "value", value) for key, value in config.items()}


def virtual_token_file(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return PEFT's file from what was communicated: P-tuning's layers applied to its embeddings (V, H).

    A state of any other method comes back as it is.
    """
    if "embedding.weight" not in state:
        return dict(state)
    value = state["embedding.weight"].float()
    for number in (0, 2, 4):
        weight, bias = (state[f"mlp_head.{number}.{part}"].float() for part in ("weight", "bias"))
        value = torch.nn.functional.linear(value if number == 0 else value.relu(), weight, bias)
    return {PROMPT: value}
