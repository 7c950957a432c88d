# SPDX-License-Identifier: Apache-2.0
"""docs/reference/rules.md from the code: rules, methods, and which of them go together under which protection.

medflare rules --markdown > docs/reference/rules.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medflare.aggregation import RULES, rule_class
from medflare.aggregation.facts import RuleFacts, SettingFacts, rule_facts, source_of
from medflare.aggregation.robust import ByzantineRule
from medflare.learners import LEARNERS, reads
from medflare.learners.facts import method_facts, resolved, sharing, variants
from medflare.recipes.combinations import PROTECTIONS, Protection, problems
from medflare.wire.compression import CODECS

TITLES: dict[Protection, str] = {
    "none": "In the clear",
    "masking": "Under masking",
    "he": "Under homomorphic encryption",
}

ASKED = """\
`fedprox`, `scaffold` and `drfa` (`algorithms.md` 7.2, 7.3, 7.6) act on every optimiser step of a site, with
any method:

* after the method clips its gradients, and on shared parameters that learn. Clipping bounds what the data
  say; μ means the same whatever they say, and the corrections of all sites still add up to nothing;
* `fedprox`: μ(θ − θ_r) joins the gradient. `--set rule=fedprox --set rule_settings.mu=0.1`; try 0.001,
  0.01, 0.1, 1;
* `scaffold`: g − c_k + c. c_k stays in the site's local state, Δc_k travels as a declared sum, c comes
  back, both in fp32: twice the bytes of fp32 updates, three times those of bf16. `control: option_2` is the
  paper's estimate, which supposes SGD; under AdamW its steps say nothing of the gradients' size, so the
  default averages the gradients. The mean actual learning rate is the metric `control_lr`;
* `drfa`: the sites drawn by λ train, their mean is uniform, and m sites measure the mean of all snapshots
  on one batch of training examples. λ, draws and losses stand in `run.json`; the losses are told in the
  clear, under masking too.

`ddcs`, `uniform_selection`, `importance_sampling` and `fedcs` (6.2, 7.20, 7.21) choose who trains. Nothing of
a step changes; a site learns its importance weight, and under masks scales its own update by it
(`docs/methods/ddcs.md`)."""


def page() -> str:
    """The whole document."""
    reasons: dict[str, int] = {}
    parts = [
        "# Rules, methods, and what goes together",
        _prose(
            "Generated from the code by `medflare rules --markdown > docs/reference/rules.md`; a test compares the "
            "two. `medflare rules --json` and `medflare methods --json` say the same to a script. A job "
            "names a rule and its `rule_settings`; what cannot work is refused before anything starts, with "
            "the reason and what to use instead."
        ),
        "## Rules",
        _prose(
            "**needs**: a weighted sum of the updates, which can be masked or encrypted, or each update by "
            "itself. **streams**: memory does not grow with the number of sites. Sections and ids are those "
            "of `algorithms.md`."
        ),
        _table(("rule", "needs", "streams", "what it does", "source"), map(_rule_row, _rules())),
        "### Settings of the rules",
        _table(("rule", "setting", "default", "allowed", "meaning"), _setting_rows()),
        "### Rules that ask something of the sites",
        ASKED,
        "## Methods",
        _table(("method", "reads", "what it does", "source", "variants"), map(_method_row, sorted(LEARNERS))),
        "## What goes together",
        _prose(
            "A method stands once for each way of sharing LoRA factors it knows (`settings.sharing`); rules "
            "have their default settings, but `influence (client)` for `mode: client`. **yes**: with every "
            "uplink; names of codecs: with these; a number: not at all, for that reason of the list below. "
            f"What withstands f hostile sites needs enough others: {_least()}."
        ),
        *(section for protection in PROTECTIONS for section in _matrix(protection, reasons)),
        "### Reasons, and what to use instead",
        "\n".join(f"{number}. {text}" for text, number in reasons.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _least() -> str:
    kinds = {name: rule_class(name) for name in sorted(RULES)}
    least = {name: kind.least_of_f for name, kind in kinds.items() if issubclass(kind, ByzantineRule)}
    return ", ".join(f"`{name}` needs {a}f + {b} sites" for name, (a, b) in least.items())


def _rules() -> list[RuleFacts]:
    return [rule_facts(name) for name in sorted(RULES)]


def _rule_row(rule: RuleFacts) -> Sequence[str]:
    alone = ", ".join(f"`{key}: {value}`" for key, value in rule.sum_with.items())
    needs = rule.needs + (f"; with {alone} sum" if alone else "")
    streams = "yes" if rule.streams else "no"
    return (f"`{rule.name}`", needs, streams, rule.summary, source_text(rule.source))


def source_text(source: Any) -> str:
    """Paper, sections and ids of a `Source` in one cell."""
    return "; ".join(part for part in (source.paper, source.sections, ", ".join(source.ids)) if part)


def _setting_rows() -> Iterator[Sequence[str]]:
    """Rules that take exactly the same settings share their rows."""
    groups: dict[tuple[SettingFacts, ...], list[str]] = {}
    for rule in _rules():
        groups.setdefault(rule.settings, []).append(f"`{rule.name}`")
    for settings, names in groups.items():
        for setting in settings:
            default = "null" if setting.default is None else str(setting.default)
            yield (", ".join(names), f"`{setting.name}`", default, setting.allowed, setting.says)


def _method_row(method: str) -> Sequence[str]:
    facts = method_facts(method)
    named = ", ".join(f"`{name}`" for name in variants(method))
    return (f"`{method}`", reads(method), facts.summary, source_text(source_of(facts.source)), named)


# ---- the matrix --------------------------------------------------------------------------------------------


def rule_choices() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Row -> rule and settings; a rule that can do with a sum has a second row for that."""
    rows: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for rule in _rules():
        rows[rule.name] = (rule.name, {})
        if rule.sum_with:
            rows[f"{rule.name} ({', '.join(map(str, rule.sum_with.values()))})"] = (rule.name, rule.sum_with)
    return rows


def method_choices() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Column -> method and settings; one for each way of sharing LoRA factors that its variants have."""
    columns: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for method in sorted(LEARNERS):
        modes = {sharing(method, resolved(method, {"variant": v})): v for v in reversed(variants(method))}
        for mode, variant in reversed(modes.items()):
            name = f"{method} ({mode})" if len(modes) > 1 else method
            columns[name] = (method, {"variant": variant})
    return columns


def _matrix(protection: Protection, reasons: dict[str, int]) -> Iterator[str]:
    """Heading and table of one protection."""
    columns = method_choices()
    rows = [
        (f"`{row}`", *(_cell(rule, method, protection, reasons) for method in columns.values()))
        for row, rule in rule_choices().items()
    ]
    yield f"### {TITLES[protection]}"
    yield _table(("rule", *columns), rows)


def _cell(
    rule: tuple[str, Mapping[str, Any]],
    method: tuple[str, Mapping[str, Any]],
    protection: Protection,
    reasons: dict[str, int],
) -> str:
    """`yes`, the codecs that work, or the numbers of the reasons, which are added to `reasons`."""
    found = {
        uplink: problems(rule[0], *method, uplink, protection, rule_settings=rule[1]) for uplink in CODECS
    }
    working = [uplink for uplink, reasons_ in found.items() if not reasons_]
    if working:
        return "yes" if len(working) == len(CODECS) else ", ".join(working)
    common = [text for text in next(iter(found.values())) if all(text in other for other in found.values())]
    told = [_in_general(text, rule[0], method[0]) for text in common]
    return ", ".join(str(reasons.setdefault(text, len(reasons) + 1)) for text in told)


def _in_general(reason: str, rule: str, method: str) -> str:
    """A reason without the names of the rule and the method it is about, so that many share it."""
    reason = reason.replace(f"rule '{rule}'", "the rule", 1).replace(f"method '{method}' as", "the method as")
    return reason.replace("the rule", "The rule", 1) if reason.startswith("the rule") else reason


def _prose(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Any) -> str:
    """Markdown; a bar in a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines)
