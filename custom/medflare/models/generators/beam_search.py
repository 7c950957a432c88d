# SPDX-License-Identifier: Apache-2.0
"""transformers' beam search over any function that gives logits, so that no search is written here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

Logits = Callable[[Tensor, Tensor], Tensor]
"""(image (B, S, width), ids (B, T)) -> logits (B, T, vocabulary)."""


class SearchConfig(PretrainedConfig):
    """Configuration as transformers' `generate` asks for it."""

    model_type = "medflare_report_search"


class Searched(PreTrainedModel, GenerationMixin):
    """A function that gives logits, as `generate` wants a model; it has no weights of its own."""

    config_class = SearchConfig
    main_input_name = "input_ids"
    _supports_cache_class = False

    def __init__(self, logits: Logits, vocabulary: int, device: torch.device) -> None:
        config = SearchConfig(is_encoder_decoder=True)
        config.vocab_size, config.decoder_start_token_id = vocabulary, 0
        super().__init__(config)
        self.logits = logits
        self.place = torch.nn.Parameter(torch.zeros(1, device=device), requires_grad=False)

    @classmethod
    def can_generate(cls) -> bool:
        return True

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        return {"decoder_input_ids": input_ids, "encoder_outputs": kwargs["encoder_outputs"]}

    def forward(
        self, decoder_input_ids: Tensor, encoder_outputs: BaseModelOutput, **_: Any
    ) -> Seq2SeqLMOutput:
        """Return the logits of the next word after each row of ids."""
        image = encoder_outputs.last_hidden_state
        assert image is not None
        return Seq2SeqLMOutput(logits=self.logits(image, decoder_input_ids))


@torch.no_grad()
def search(logits: Logits, image: Tensor, begin: int, vocabulary: int, arguments: dict[str, Any]) -> Tensor:
    """Return the ids (B, T) that transformers' `generate` finds.

    Args:
        logits: what is searched. image: (B, S, width), what it is given.
        begin: the token before a report.
        arguments: of `generate`, as `search_arguments` makes them.
    """
    searched = Searched(logits, vocabulary, image.device).eval()
    first = torch.full((len(image), 1), begin, dtype=torch.long, device=image.device)
    found: Tensor = searched.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=image),
        decoder_input_ids=first,
        decoder_start_token_id=begin,
        bos_token_id=begin,
        use_cache=False,
        **arguments,
    )
    return found[:, 1:]
