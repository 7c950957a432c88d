# SPDX-License-Identifier: Apache-2.0
"""Settings that a method calls without effect have none: other values give the same update and metrics.

A job refuses such changes (`recipes.changed_settings`), so a wrong entry would refuse what works.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from method_sites import SETTINGS, Make

from medflare.core.hints import RoundHints
from medflare.core.idle_settings import without_effect
from medflare.core.plan import RoundPlan
from medflare.core.presets import lookup, merge_settings
from medflare.learners.registry import METHODS

PLAN = RoundPlan(round=0, rounds=3, steps=2, hints=RoundHints(site_index=0, sites=1, summed=(0,)))
VERA = {"method": "vera"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one adapter": ("fedmrg", {"variant": "fed_lora"}),
    "nothing is distilled": ("fedmrg", {"distil_to_generic": False, "distil_to_specialised": False}),
    "one teaches": ("fedmrg", {"variant": "without_g2l", "bank": "local_queue"}),
    "an encoder that stands still": ("fedmrg", {"encoder_lr_scale": 0.0, "bank": "raw"}),
    "diagnoses of no use": ("fedmrg", {"variant": "without_prompts"}),
    "another adapter": ("fedmrg", {"variant": "without_specialised", "model": {"peft": VERA}}),
    "VeRA in place of LoRA": ("fed_medlora", {"peft": VERA}),
    "no patients' factors": ("fedtar", {}),
    "images as they are": ("fedvit_gpt2", {"augment": False}),
    "features as they are": ("r2gengpt", {"augment": False}),
    "no memory": ("transformer", {}),
    "the released temperature": ("wcl", {"variant": "released"}),
    "words alone": ("dcl", {"contrast": False}),
    "nothing is retrieved": ("dcl", {"retrieval": False}),
    "words alone, nothing retrieved": ("dcl", {"contrast": False, "retrieval": False}),
    "the visit alone": ("ct2replong", {"former": False}),
}


def other_value(kind: Any, value: Any) -> Any:
    """Return another value of a setting's type; None where there is no simple one."""
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if isinstance(value, bool):
        return not value
    if choices:
        return next((choice for choice in choices if choice != value), None)
    if isinstance(value, int):
        return value + 1
    return value * 0.5 + 0.01 if isinstance(value, float) else None


def other_values(settings: Any, names: list[str]) -> dict[str, Any]:
    """Return a block with another value for each setting, and for each one in a block that is named."""
    changed: dict[str, Any] = {}
    for name in names:
        *path, last = name.split(".")
        block = settings
        for part in path:
            block = getattr(block, part)
        value, nested = getattr(block, last), getattr(getattr(block, last), "model_fields", None)
        new = (
            other_values(value, list(nested)) or None
            if nested
            else other_value(type(block).model_fields[last].annotation, value)
        )
        for part in (last, *reversed(path)) if new is not None else ():
            new = {part: new}
        changed = merge_settings(changed, new or {})
    return changed


@pytest.mark.parametrize("case", CASES)
def test_another_value_of_a_setting_without_effect_changes_nothing(case: str, make_learner: Make) -> None:
    method, given = CASES[case]
    base = merge_settings(SETTINGS[method], given)
    settings = METHODS[method].resolve(base)
    names = sorted(set(without_effect(settings)) - {"bank"})
    fixed = [key for key in names if lookup(METHODS[method].variants[settings.variant], key) is not None]
    changes = other_values(settings, [name for name in names if name not in fixed])
    assert changes, "the case has no settings without effect"
    results = []
    for own in (base, merge_settings(base, changes)):
        learner = make_learner(method, **own)
        update = learner.fit(PLAN)
        metrics = learner.evaluate("val", PLAN)
        numbers = {k: v for k, v in (update.metrics | dict(metrics)).items() if "seconds" not in k}
        results.append((update.delta, update.sums, numbers))
    one, two = results
    for before, after in zip(one[:2], two[:2], strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert one[2] == pytest.approx(two[2], nan_ok=True)


@pytest.mark.parametrize("bank", ["prototypes", "raw"])
@pytest.mark.parametrize("without", [{"variant": "fed_lora"}, {"encoder_lr_scale": 0.0}])
def test_features_that_nobody_reads_do_not_leave_a_site(
    bank: str, without: dict[str, Any], make_learner: Make
) -> None:
    """Preset `paper` has a bank of features in the clear, and its Fed-LoRA contrasts nothing."""
    settings = METHODS["fedmrg"].resolve(SETTINGS["fedmrg"] | {"bank": bank} | without)
    assert (settings.sends_features, settings.sends_sums) == ("none", {})
    learner = make_learner("fedmrg", bank=bank, **without)
    assert learner.sums_spec(2) == {} == learner.fit(PLAN).sums
    assert METHODS["fedmrg"].resolve({"preset": "paper"}).sends_features == "raw"
    assert METHODS["fedmrg"].resolve({"preset": "paper", "variant": "fed_lora"}).sends_features == "none"
