# SPDX-License-Identifier: Apache-2.0
"""The wording of all tasks within a model's own chat template, as `medflare models add` writes it.

It is short on purpose: an adapter learns what is asked in its first steps, and every token of an instruction
is paid for in each question. For models that are asked without any training see `full`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from medflare.models.chat_template import ChatTurn
from medflare.models.templates import worded
from medflare.tasks.extraction import prompts
from medflare.tasks.questions import answerer
from medflare.tasks.summaries import summariser

SHORT_NER = "Copy the text and mark every {names}.\n\n{text}"
SHORT_RE = "Copy the text and mark every modifier of the {head} that is marked.\n\n{text}"
FINDINGS = "Write the findings of this chest X-ray."


def chat_wording(turn: ChatTurn, *, full: bool = False) -> dict[str, Any]:
    """Return the content of medflare_prompt.json: each task's prompts, with the template around them.

    Args:
        full: with every type's definition, as our wording for models without a template has it.
    """
    ner = prompts.DEFAULT_NER.removesuffix(prompts.ANSWER) if full else SHORT_NER
    re = prompts.DEFAULT_RE.removesuffix(prompts.ANSWER) if full else SHORT_RE
    questions = {name: text.removesuffix("\nAnswer:") for name, text in answerer.WORDING.items()}
    summary = "Write the impression of these findings.\n\n{source}"
    return {
        "template": {
            "prefix": f"{turn.before}<Img>",
            "suffix": "</Img> Conditions:",
            "instruction": f" {FINDINGS}{turn.after}",
        },
        "extraction": {"ner": turn.around(ner), "re": turn.around(re)},
        answerer.TASK: {name: turn.around(text) for name, text in questions.items()},
        summariser.TASK: {summariser.KIND: turn.around(summary)},
    }


class ReportFrame(Settings):
    """Texts around an image and its diagnosis tokens."""

    prefix: str
    suffix: str
    instruction: str


class PromptFile(Settings):
    """medflare_prompt.json: a model's own wording. What is left out is that of its chat template, or ours."""

    template: ReportFrame | None = Field(None, description="around the image, of methods that write reports")
    code_words: tuple[str, str, str, str] | None = Field(
        None, description="words that start the rows of blank, positive, negative and uncertain"
    )
    condition_words: tuple[str, ...] | None = Field(
        None, min_length=14, max_length=14, description="words that mark the fourteen diagnosis tokens"
    )
    extraction: dict[str, str] | None = Field(
        None, description="ner and re: with {text}; also {names}, {types}, {how}, and of re {head}"
    )
    question_answering: dict[str, str] | None = Field(
        None, description="options: with {question}; letters: with {question} and {options}"
    )
    summarisation: dict[str, str] | None = Field(None, description="summary: with {source}")


def read_wording(file: Path) -> dict[str, Any]:
    """Return the content of a user's medflare_prompt.json, every text checked.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a text lacks a field that it needs.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--wording {file}: cannot be read as JSON: {error}.") from error
    given = parse(PromptFile, data if isinstance(data, dict) else {"": data}, str(file))
    prompts.wording(given.extraction)
    worded(answerer.TASK, given.question_answering, answerer.WORDING, answerer.NEEDED)
    worded(summariser.TASK, given.summarisation, summariser.WORDING, summariser.NEEDED)
    return given.model_dump(mode="json", exclude_none=True)
