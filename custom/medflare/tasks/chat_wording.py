# SPDX-License-Identifier: Apache-2.0
"""The wording of all tasks within a model's own chat template, as `medflare models add` writes it.

It is short on purpose: an adapter learns what is asked in its first steps, and every token of an instruction
is paid for in each question. For models that are asked without any training see `full`.
"""

from __future__ import annotations

from typing import Any

from medflare.models.chat_template import ChatTurn
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
