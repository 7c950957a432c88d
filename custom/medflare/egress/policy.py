# SPDX-License-Identifier: Apache-2.0
"""A hospital's veto: the rules of site.yaml's `policy` as functions from what is asked to a refusal.

Pure. The rules are the site's and out of a job's reach: a job can ask for more protection than they do, never
for less. Refusals name the rule and the file; only the file's name, so that their text may leave the site.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from medflare.core.errors import MedflareError
from medflare.data.settings.policy import ANY, PolicyConfig

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Refusal:
    """One rule that says no: `policy.<key>`, and what was found against what it allows."""

    rule: str
    text: str


class PolicyError(MedflareError):
    """The hospital's policy refuses; its text may leave the site.

    Attributes:
        refusals: every rule that refuses.
        file: the site's own file, with its folder; for the site's records only.
    """

    def __init__(self, refusals: Collection[Refusal], file: Path) -> None:
        self.refusals, self.file = tuple(refusals), file
        told = "; ".join(f"{item.rule}: {item.text}" for item in self.refusals)
        super().__init__(f"refused by this site's {file.name}: {told}.")
        self.add_note(f"The rules are in {file}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of one site. Every check raises PolicyError with all rules that refuse."""

    rules: PolicyConfig = field(default_factory=PolicyConfig)
    file: Path = Path("site.yaml")

    def admit(
        self,
        *,
        job: str,
        method: str,
        protections: Collection[str],
        sites: int,
        partners: Collection[str] = (),
        rounds: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Whether a job may do what it asks of this site.

        Args:
            protections: of its updates, as `mask` or `he`.
            sites: how many take part, this one included; `partners` are the names of the others.
            rounds: how many the run has; None where the task does not say.
            limit: most studies of an evaluation; None for all.
        """
        rules = self.rules
        found = [
            *_listed("jobs", "job", job, rules.jobs),
            *_listed("methods", "method", method, rules.methods),
            *self._unprotected(protections),
        ]
        if sites < rules.min_sites:
            found.append(_refusal("min_sites", f"{sites} sites take part, at least {rules.min_sites} must"))
        if rules.partners is not None and (strange := sorted(set(partners) - set(rules.partners))):
            text = f"{', '.join(strange)} would take part; {_allowed(rules.partners)}"
            found.append(_refusal("partners", text))
        if rounds is not None and rules.most_rounds is not None and rounds > rules.most_rounds:
            found.append(_refusal("most_rounds", f"the run has {rounds} rounds, at most {rules.most_rounds}"))
        if limit is not None:
            found += self._too_few("an evaluation", limit)
        self._raise(found)

    def submitted(self, *, job: str, submitter: str, organisation: str, role: str) -> None:
        """Whether a job of this name may come from this person; asked before anything is deployed."""
        rules = self.rules
        self._raise(
            [
                *_listed("jobs", "job", job, rules.jobs),
                *_listed("submitters", "submitter", submitter, rules.submitters),
                *_listed("organisations", "organisation", organisation, rules.organisations),
                *_listed("roles", "role", role, rules.roles),
            ]
        )

    def update(self, names: Iterable[str], protections: Collection[str]) -> None:
        """Whether an update of tensors of these declared names may leave, protected like this."""
        self._raise([*self._unprotected(protections), *self._held(names)])

    def first_values(self, names: Iterable[str]) -> None:
        """Whether the values before round 1 may leave: public weights and a seed, which need no cover."""
        self._raise(self._held(names))

    def sketch(self) -> None:
        """Whether a sketch of the site's knowledge graph may leave."""
        if self.rules.knowledge_sketch == "deny":
            self._raise([_refusal("knowledge_sketch", "no sketch of the knowledge graph may leave")])

    def exact(self) -> None:
        """Whether the site takes part in exact comparison of knowledge graphs."""
        if self.rules.knowledge_exact == "deny":
            text = "no exact size of the knowledge graph may be told; it is 'deny' unless a site allows it"
            self._raise([_refusal("knowledge_exact", text)])

    def counted(self, what: str, examples: int) -> None:
        """Whether something that says it is about `examples` examples may leave."""
        self._raise(self._too_few(what, examples))

    def volume(self, before: int, size: int) -> None:
        """Whether `size` bytes may follow the `before` bytes that left in the same round."""
        most = self.rules.max_bytes_per_round
        if most is not None and before + size > most:
            text = f"{size:,} bytes after {before:,} in the same round; at most {most:,} may leave"
            self._raise([_refusal("max_bytes_per_round", text)])

    def metrics(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the metrics that may leave."""
        allowed = self.rules.metrics
        if allowed == "all":
            return dict(values)
        patterns = () if allowed == "none" else allowed
        return {name: value for name, value in values.items() if matches(name, patterns)}

    def digest(self) -> str:
        """sha256 of the rules: tells whether a site changed them between two messages."""
        text = json.dumps(self.rules.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _unprotected(self, protections: Collection[str]) -> list[Refusal]:
        has = " and ".join(sorted(protections)) or "none"
        return [
            _refusal(
                "require", f"updates must have the protection {item.replace('|', ' or ')}, they have {has}"
            )
            for item in self.rules.require
            if not set(item.split("|")) & set(protections)
        ]

    def _held(self, names: Iterable[str]) -> list[Refusal]:
        held = [name for name in sorted(names) if not matches(name, self.rules.tensors)]
        if not held:
            return []
        more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
        told = ", ".join(f"'{name}'" for name in held[:SHOWN]) + more
        return [_refusal("tensors", f"{told} may not leave; {_allowed(self.rules.tensors)}")]

    def _too_few(self, what: str, examples: int) -> list[Refusal]:
        """The text leaves the site, so it does not say how few they are."""
        fewest = self.rules.min_examples
        if examples >= fewest:
            return []
        return [_refusal("min_examples", f"{what} is about fewer than {fewest} examples")]

    def _raise(self, found: Collection[Refusal]) -> None:
        if found:
            raise PolicyError(found, self.file)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the shell patterns fits the whole name; upper and lower case differ."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(key: str, what: str, name: str, patterns: tuple[str, ...]) -> list[Refusal]:
    if matches(name, patterns):
        return []
    return [_refusal(key, f"{what} '{name}' is not admitted; {_allowed(patterns)}")]


def _allowed(patterns: tuple[str, ...]) -> str:
    return f"allowed: {', '.join(patterns) or 'nothing'}"


def _refusal(key: str, text: str) -> Refusal:
    return Refusal(f"policy.{key}", text)


def in_words(policy: Policy) -> list[str]:
    """What the rules mean, a sentence each; for people who sign off on them."""
    rules = policy.rules
    named = {
        "Jobs": rules.jobs,
        "Methods": rules.methods,
        "Submitters": rules.submitters,
        "Organisations": rules.organisations,
        "Roles": rules.roles,
        "Tensors": rules.tensors,
    }
    words = [f"{what} only: {', '.join(given)}." for what, given in named.items() if given != ANY]
    words += [f"Every update must have: {item.replace('|', ' or ')}." for item in rules.require]
    if rules.min_sites > 1:
        words.append(f"At least {rules.min_sites} sites must take part.")
    if rules.partners is not None:
        words.append(f"Sites it takes part with: {', '.join(rules.partners) or 'none'}.")
    if rules.min_threshold is not None:
        words.append(f"A masked sum opens only if at least {rules.min_threshold} sites work together.")
    if rules.min_examples > 1:
        words.append(f"Nothing leaves that is about fewer than {rules.min_examples} examples.")
    if rules.most_rounds is not None:
        words.append(f"A run may have at most {rules.most_rounds} rounds.")
    if rules.max_bytes_per_round is not None:
        words.append(f"At most {rules.max_bytes_per_round:,} bytes may leave in a round.")
    if rules.knowledge_sketch == "deny":
        words.append("No sketch of its knowledge graph may leave.")
    if rules.knowledge_exact == "allow":
        words.append("It tells the sizes of its knowledge graph and of what that shares with each other's.")
    if rules.metrics != "all":
        told = "none" if rules.metrics == "none" else ", ".join(rules.metrics)
        words.append(f"Metrics that may leave: {told}.")
    return words or ["No rule of its own: any admitted class, any method, declared tensors only."]
