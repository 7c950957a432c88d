# SPDX-License-Identifier: Apache-2.0
"""Prefix, prompt and P-tuning: PEFT's prompt encoders, put into the decoder by two hooks.

PEFT adds virtual tokens in the wrapper's `forward` and `generate`, which know no image tokens
(`inputs_embeds` in `generate` is refused) and no decoder that is called without its output layer. Hooks on
the decoder serve training, scoring and generation alike; the positions they add never show.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.core.seeds import seeded
from medflare.models.adapters.base import AdapterSet
from medflare.models.adapters.methods import METHODS, PrefixSettings, PromptSettings, PTuningSettings

PROMPT = "prompt_embeddings"
"""PEFT's name of what its files hold."""


class VirtualTokens(AdapterSet):
    """One adapter of virtual tokens on a frozen decoder; the interface of `adapters.Adapters`."""

    def __init__(
        self,
        model: Any,
        settings: PrefixSettings | PromptSettings | PTuningSettings,
        names: Iterable[str],
        seed: int,
    ) -> None:
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
        configure = METHODS[settings.method].configure
        assert configure is not None
        self.config = configure(settings, int(model.config.hidden_size), seed)
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

    @property
    def positions(self) -> int:
        """Positions of the decoder that the adapter takes."""
        return int(self.settings.tokens)

    # ---- in the decoder ----------------------------------------------------------------------------------

    def _before(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Adds the virtual tokens where no token was seen yet, and their places to mask and positions."""
        if not self.active:
            return None
        kwargs = dict(kwargs)
        if args:
            kwargs["input_ids"] = args[0]
        cache = kwargs.get("past_key_values")
        first = cache is None or cache.get_seq_length() == 0
        given = kwargs["inputs_embeds"] if kwargs.get("inputs_embeds") is not None else kwargs["input_ids"]
        batch, tokens = given.shape[0], self.positions
        if kwargs.get("attention_mask") is not None:
            seen = kwargs["attention_mask"].new_ones(batch, tokens)
            kwargs["attention_mask"] = torch.cat([seen, kwargs["attention_mask"]], 1)
        for name in ("position_ids", "cache_position"):
            if kwargs.get(name) is not None:
                kwargs[name] = kwargs[name] + tokens
        if first and isinstance(self.settings, PrefixSettings):
            kwargs["past_key_values"] = self._prefilled(cache, batch)
        elif first:
            self._prepend(decoder, kwargs, batch)
        return (), kwargs

    def _prefilled(self, cache: Any, batch: int) -> Any:
        """The empty cache with the prefix's keys and values in every layer."""
        prefix = self.peft.get_prompt(batch)
        if cache is None:
            return prefix
        for number, layer in enumerate(prefix.layers):
            cache.update(layer.keys, layer.values, number)
        return cache

    def _prepend(self, decoder: Any, kwargs: dict[str, Any], batch: int) -> None:
        """Puts the virtual tokens before the embeddings."""
        embedded = kwargs.get("inputs_embeds")
        if embedded is None:
            embedded = decoder.get_input_embeddings()(kwargs.pop("input_ids"))
        prompt = self.peft.get_prompt(batch).to(embedded.dtype)
        kwargs["inputs_embeds"] = torch.cat([prompt, embedded], 1)
        self._added = self.positions
        for name in ("position_ids", "cache_position"):
            if (places := kwargs.get(name)) is not None:
                ahead = torch.arange(self.positions, device=places.device).expand(*places.shape[:-1], -1)
                kwargs[name] = torch.cat([ahead, places], -1)

    def _after(self, decoder: Any, args: Any, output: Any) -> Any:
        """Takes the virtual tokens' hidden states off again."""
        if self._added:
            output.last_hidden_state = output.last_hidden_state[:, self._added :]
            self._added = 0
        return output

    # ---- the adapter -------------------------------------------------------------------------------------

    def use(
        self, active: Iterable[str], train: Iterable[str] = (), scales: dict[str, float] | None = None
    ) -> None:
        """Whether the virtual tokens are there, and whether they learn."""
        self.active = bool(tuple(active))
        for parameter in self.encoder.parameters():
            parameter.requires_grad_(bool(set(train)))

    def parameters(self, name: str) -> list[torch.nn.Parameter]:
        """The embeddings, and with P-tuning the layers behind them."""
        return list(self.encoder.parameters())

    def live(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Wire name -> parameter: PEFT's own name where one tensor is all, else the encoder's names."""
        found = dict(self.encoder.named_parameters())
        return {PROMPT: found["embedding.weight"]} if len(found) == 1 else found

    def state(self, name: str) -> dict[str, Tensor]:
        """A detached fp32 copy of what travels."""
        return {
            key: value.detach().to("cpu", torch.float32).clone() for key, value in self.live(name).items()
        }

    def load(self, name: str, state: dict[str, Tensor]) -> None:
        """Puts values in place; KeyError if `state` is not exactly this adapter's set of names."""
        here = self.live(name)
        if odd := sorted(set(here) ^ set(state)):
            raise KeyError(f"adapter '{name}': {len(odd)} names differ, for instance '{odd[0]}'.")
        with torch.no_grad():
            for key, parameter in here.items():
                parameter.copy_(state[key])

    def exported(self, name: str) -> dict[str, Tensor]:
        """What PEFT's file of this adapter holds."""
        return prompt_of(self.state(name))

    def config_dict(self) -> dict[str, Any]:
        """PEFT's adapter_config.json as JSON types, for a writer that has no model."""
        found = self.config.to_dict() | {"inference_mode": True}
        return {key: getattr(value, "value", value) for key, value in found.items()}


def prompt_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """PEFT's file from what travels: P-tuning's layers applied to its embeddings, the rest as it is."""
    if "embedding.weight" not in state:
        return state
    value = state["embedding.weight"].float()
    for number in (0, 2, 4):
        weight, bias = (state[f"mlp_head.{number}.{part}"].float() for part in ("weight", "bias"))
        value = torch.nn.functional.linear(value if number == 0 else value.relu(), weight, bias)
    return {PROMPT: value}
