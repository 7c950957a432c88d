# SPDX-License-Identifier: Apache-2.0
"""The wording with every type's definition, which training and tests were first measured with."""

from __future__ import annotations

from medflare.core.errors import ConfigError
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.models.chat_template import chat_turn
from medflare.tasks.chat_wording import chat_wording

LONGEST = 1600
"""Tokens of a question and its answer; the full wording takes more than the preset `instruct` allows."""


def use_full_wording(learner: ExtractionLearner) -> None:
    """Ask and train a learner with the full wording within the model's own chat template.

    Raises:
        ConfigError: the model's tokenizer has no chat template.
    """
    turn = chat_turn(learner.model.backbone.tokenizer)
    if turn is None:
        raise ConfigError(
            f"backbone '{learner.model.backbone.name}' has no chat template, so short and full wording are "
            "the same. Choose a model that has one, such as smollm2."
        )
    learner.model.backbone.extraction = chat_wording(turn, full=True)["extraction"]
    learner.settings = learner.settings.model_copy(update={"max_tokens": LONGEST})
    learner.longest = min(LONGEST, learner.model.context)
    learner.predictor = learner.make_predictor()
    learner.train_rows, _ = learner.rows_of(learner.records("train"))
