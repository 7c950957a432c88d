# SPDX-License-Identifier: Apache-2.0
"""Prompts for extraction, the answers a model is trained to write, and how its outputs are parsed.

The wording is our own; the fields and type names are the paper's. A backbone folder may bring its own,
shorter wording in `medflare_prompt.json` under `extraction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from medflare.core.errors import ConfigError
from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.models.templates import filled
from medflare.tasks.extraction.examples import NER, RE, Example
from medflare.tasks.extraction.markup import (
    MISPLACED,
    ParsedOutput,
    read_json,
    read_spans,
    write_json,
    write_spans,
)

Format = Literal["html", "json"]
Decoding = Literal["free", "copy"]

DEFINITIONS: dict[str, str] = {
    "problem": "a disease, symptom, sign, injury or abnormal finding of the patient",
    "treatment": "a procedure, therapy or device used to treat, other than a medication",
    "test": "an examination, measurement, laboratory analysis or imaging study",
    "drug": "a medication, vaccine or other substance given to the patient",
    "severity": "how bad the problem is",
    "condition": "under which circumstances the problem would occur",
    "uncertain": "a word that says the problem is only possible",
    "subject": "who has the problem, if it is not the patient",
    "bodyloc": "where in the body the problem is",
    "course": "how the problem develops",
    "temporal": "when it happened, or since when",
    "negation": "a word that says it is absent or was not done",
    "labvalue": "the result of the test",
    "reference_range": "the normal range of the test",
    "strength": "amount of substance in one unit of the drug",
    "dosage": "how many units are taken at once",
    "duration": "for how long the drug is taken",
    "form": "tablet, cream, injection and the like",
    "frequency": "how often the drug is taken",
    "route": "by which way the drug is given",
}


def _lines(types: Sequence[str], html: bool) -> str:
    tag = '<span class="{0}"> for {0}: {1}' if html else '"{0}": {1}'
    return "\n".join("- " + tag.format(name, DEFINITIONS[name]) for name in types)


HOW: dict[str, str] = {
    "html": "Copy the text and put a span around",
    "json": 'Answer with a JSON list of {"entity": type, "text": words as written}, in order, one row for',
}

ANSWER = "\n\n### Answer\n"
DEFAULT_NER = (
    "### Task\n{how} every {names} in the clinical text.\n\n### Types\n{types}\n\n### Text\n{text}" + ANSWER
)
DEFAULT_RE = (
    "### Task\n{how} every modifier of the {head} that is marked in the clinical text, "
    "and nothing else.\n\n### Types\n{types}\n\n### Text\n{text}" + ANSWER
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionWording:
    """Texts with the fields {text} and, where wanted, {how}, {names}, {types}, {head}."""

    ner: str = DEFAULT_NER
    re: str = DEFAULT_RE
    format: Format = "html"

    def prompt(self, example: Example) -> str:
        """Return the prompt of an example; the model continues at its end."""
        html = self.format == "html"
        marks = [example.head] if example.head is not None else []
        fields = {
            "how": HOW[self.format],
            "names": ", ".join(example.types),
            "types": _lines(example.types, html),
            "text": write_spans(example.source, marks),
            "head": example.head.label if example.head is not None else "",
        }
        return filled(self.ner if example.task == NER else self.re, fields)

    def answer(self, example: Example) -> str:
        """Return the text a model should write, without the end mark."""
        write = write_spans if self.format == "html" else write_json
        return write(example.source, example.answer)

    def parse(self, output: str, example: Example) -> ParsedOutput:
        """Return the marks that a model's output puts on the example's source.

        Parsed with the complete inventory of the task; a modifier that the head cannot have is
        left out and counted, and does not make the output malformed.
        """
        types = ENTITY_TYPES if example.task == NER else MODIFIER_TYPES
        if self.format == "html":
            parsed = read_spans(output, example.source, types)
        else:
            parsed = read_json(output, example.source, types, example.head)
        if example.head is not None:
            allowed = [mark for mark in parsed.marks if mark.label in example.types]
            if len(allowed) < len(parsed.marks):
                parsed.faults[MISPLACED] += len(parsed.marks) - len(allowed)
            parsed.marks = allowed
        return parsed


def wording(prompt_settings: Mapping[str, str] | None, format: Format = "html") -> ExtractionWording:
    """Return a backbone's own wording where it has one, else ours.

    Raises:
        ConfigError: the backbone's wording has an unknown key or no field {text}.
    """
    given = dict(prompt_settings or {})
    odd = sorted(set(given) - {NER, RE})
    if odd:
        raise ConfigError(
            f"medflare_prompt.json: extraction has '{odd[0]}', which nothing reads; expected 'ner' and 're'."
        )
    for task, words in given.items():
        if "{text}" not in words:
            raise ConfigError(
                f"medflare_prompt.json: extraction.{task} has no {{text}}, so the model would never see the "
                "note. Put {text} where it belongs."
            )
    return ExtractionWording(ner=given.get("ner", DEFAULT_NER), re=given.get("re", DEFAULT_RE), format=format)
