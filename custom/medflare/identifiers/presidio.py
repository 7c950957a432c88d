# SPDX-License-Identifier: Apache-2.0
"""Microsoft Presidio as a detector, with a spaCy model that the hospital has installed, and the rules.

Presidio without a language model finds no names, and would fetch one from the internet: a model must be
named, it is loaded from this machine, and the recogniser of e-mail addresses, which fetches a list of
domains, is left out.
"""

from __future__ import annotations

from typing import Any

from medflare.core.errors import ConfigError
from medflare.identifiers.kinds import Identifier, Kind, without_overlaps
from medflare.identifiers.rules import RuleDetector

KIND_OF_ENTITY: dict[str, Kind] = {
    "PERSON": "name",
    "DATE_TIME": "date",
    "PHONE_NUMBER": "phone",
    "LOCATION": "address",
    "ORGANIZATION": "institution",
    "US_SSN": "record_number",
    "MEDICAL_LICENSE": "record_number",
    "URL": "web_address",
}
LEFT_OUT = ("EmailRecognizer", "UsLicenseRecognizer")
"""Recognisers that reach for the network, or take "T1" for a driver's licence."""


class PresidioDetector:
    """Presidio's findings together with those of the rules.

    Args:
        model: name or folder of a spaCy pipeline on this machine.
        least_score: findings below are left out.

    Raises:
        ConfigError: Presidio or the model is not installed.
    """

    def __init__(self, model: str, least_score: float = 0.4) -> None:
        self._engine = _engine(model)
        self._least, self._rules = least_score, RuleDetector()

    def find(self, text: str) -> list[Identifier]:
        """Return the identifiers of a text in its order, none overlapping another."""
        entities = list(KIND_OF_ENTITY)
        answers = self._engine.analyze(text, language="en", entities=entities, score_threshold=self._least)
        ours = [Identifier(item.start, item.end, KIND_OF_ENTITY[item.entity_type]) for item in answers]
        return without_overlaps([*ours, *self._rules.find(text)])


def _engine(model: str) -> Any:
    try:
        import spacy
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import SpacyNlpEngine
    except ImportError:
        raise ConfigError(
            "identifiers: Presidio is not installed: pip install presidio-analyzer, and a spaCy model of the "
            "hospital's choice. Without 'identifier_model' the rules of medflare are used."
        ) from None

    class LocalEngine(SpacyNlpEngine):
        """Uses a pipeline that is loaded already, and never fetches one."""

        def __init__(self, pipeline: Any) -> None:
            super().__init__()
            self.nlp = {"en": pipeline}

    try:
        pipeline = spacy.load(model)
    except OSError:
        raise ConfigError(
            f"identifiers: no spaCy model '{model}' on this machine. Install it first."
        ) from None
    engine = AnalyzerEngine(nlp_engine=LocalEngine(pipeline), supported_languages=["en"])
    for name in LEFT_OUT:
        engine.registry.remove_recognizer(name)
    return engine
