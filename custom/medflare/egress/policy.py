# SPDX-License-Identifier: Apache-2.0
"""A hospital's policy: the rules of site.yaml's `policy`, each as a check of what a job asks for or sends.

Pure functions. A job can neither read nor change the rules; it can ask for more protection than they do,
never for less. A refusal names the rule and the file, without its folder, so that the text may leave the
site.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from medflare.core.errors import MedflareError
from medflare.core.tensor_names import FEATURES, FeatureKind
from medflare.data.settings.policy import ANY, PolicyConfig

SHOWN = 3
"""Most tensors that a refusal names."""
UNCOUNTED = ("epsilon", "delta")
"""Metrics of an update that say what its protection is."""
OF_THE_PLAN = ("steps", "seconds")
"""Metrics of an update that depend on no patient but by the time it took."""
MEASURED = {"evaluate": "validation", "finish": "test"}
"""Task -> what it measures, as `dp.outside` calls it."""


NOT_PRIVATE = (
    "jobs train with differential privacy here, and this one does not: set settings.dp in the job, with a "
    "method that has it"
)
TRAIN_LOSSES = (
    "losses of training examples, which rule 'drfa' probes, stay here; where the hospital agrees, its people "
    "write 'train_losses: true' under 'policy' in site.yaml"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that refuses, as `policy.<key>`, with what it met and what it allows."""

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
        reasons = "; ".join(f"{item.rule}: {item.text}" for item in self.refusals)
        super().__init__(f"refused by this site's {file.name}: {reasons}.")
        self.add_note(f"The rules are in {file}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of one site. Every check raises PolicyError, which names all rules that refuse.

    Attributes:
        rules: as site.yaml states them.
        file: the site.yaml, for the site's own records.
    """

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
        split: str | None = None,
        private: bool = False,
    ) -> None:
        """Check whether a job may do what it asks of this site.

        Args:
            protections: of its updates, as `mask` or `he`.
            sites: how many take part, this one included; `partners` are the names of the others.
            rounds: how many the run has; None where the task does not say.
            limit: most studies of an evaluation; None for all.
            split: on which an evaluation is asked for; None where the task is another.
            private: whether the job trains with differential privacy.

        Raises:
            PolicyError: a rule refuses.
        """
        rules = self.rules
        refusals = [
            *_listed("jobs", "job", job, rules.jobs),
            *_listed("methods", "method", method, rules.methods),
            *self._unprotected(protections),
        ]
        if sites < rules.min_sites:
            refusals.append(
                _refusal("min_sites", f"{sites} sites take part, at least {rules.min_sites} must")
            )
        if rules.partners is not None and (others := sorted(set(partners) - set(rules.partners))):
            text = f"{', '.join(others)} would take part; {_allowed(rules.partners)}"
            refusals.append(_refusal("partners", text))
        if rounds is not None and rules.most_rounds is not None and rounds > rules.most_rounds:
            refusals.append(
                _refusal("most_rounds", f"the run has {rounds} rounds, at most {rules.most_rounds}")
            )
        if limit is not None:
            refusals += self._too_few("an evaluation", limit)
        if rules.dp is not None and not private:
            refusals.append(_refusal("dp", NOT_PRIVATE))
        if split == "train" and private:
            refusals.append(_refusal("dp", "losses of training patients have no noise"))
        if split == "train" and not rules.train_losses:
            refusals.append(_refusal("train_losses", TRAIN_LOSSES))
        self._raise(refusals)

    def submitted(self, *, job: str, submitter: str, organisation: str, role: str) -> None:
        """Check whether this person may submit a job of this name, before anything is deployed."""
        rules = self.rules
        self._raise(
            [
                *_listed("jobs", "job", job, rules.jobs),
                *_listed("submitters", "submitter", submitter, rules.submitters),
                *_listed("organisations", "organisation", organisation, rules.organisations),
                *_listed("roles", "role", role, rules.roles),
            ]
        )

    def signed(self, *, job: str, signers: Sequence[tuple[str, str, str]]) -> None:
        """Check who signed a job's files, and the name in them, whatever the server said of either.

        Args:
            job: its name in the signed files; empty where they hold none.
            signers: (name, organisation, role) of each; none where nobody of the federation signed all files.
        """
        rules = self.rules
        held = {
            "jobs": rules.jobs,
            "submitters": rules.submitters,
            "organisations": rules.organisations,
            "roles": rules.roles,
        }
        limited = [key for key, patterns in held.items() if "*" not in patterns]
        if not signers:
            asking = limited or ([] if rules.unsigned_jobs else ["unsigned_jobs"])
            self._raise(
                [_refusal(key, "no admin of this federation signed the job's files") for key in asking]
            )
        if "jobs" in limited and not job:
            text = "the job's own configuration does not name it; its author exports it again"
            self._raise([_refusal("jobs", text)])
        for name, organisation, role in signers:
            self.submitted(job=job, submitter=name, organisation=organisation, role=role)

    def resume(self) -> None:
        """Check whether a job may go on with the run of an earlier one."""
        if not self.rules.resume:
            self._raise([_refusal("resume", "runs are not gone on with here; submit the job as a new run")])

    def rounds_opened(self, before: int) -> None:
        """Check whether one more round may be opened after the `before` that this site counted in the job."""
        most = self.rules.most_rounds
        if most is not None and before >= most:
            text = f"this site has counted {before} rounds in this job, at most {most}"
            self._raise([_refusal("most_rounds", text)])

    def update(self, names: Iterable[str], protections: Collection[str]) -> None:
        """Check whether an update of these declared tensors may leave under these protections."""
        self._raise([*self._unprotected(protections), *self._not_allowed(names)])

    def numbers(self, protections: Collection[str]) -> None:
        """Check whether a sum of metrics may leave under these protections."""
        self._raise(self._unprotected(protections))

    def first_values(self, names: Iterable[str]) -> None:
        """Check whether the values before round 1 may leave: public weights and a seed, which need no
        protection."""
        self._raise(self._not_allowed(names))

    def features(self, kinds: Iterable[FeatureKind]) -> None:
        """Check whether features of images of these kinds may leave."""
        allowed = FEATURES.index(self.rules.features)
        wanted = set(kinds)
        beyond = [feature for feature in FEATURES[allowed + 1 :] if feature in wanted]
        if beyond:
            text = (
                f"features of images stay here ({' and '.join(beyond)} asked for, {self.rules.features} "
                f"allowed); where the hospital agrees, its people write 'features: {beyond[-1]}' under "
                "'policy' in site.yaml, or the job is submitted without them (fedmrg: settings.bank 'off')"
            )
            self._raise([_refusal("features", text)])

    def prototypes(self, fewest: float) -> None:
        """Check the smallest number of images that a prototype of a message is the mean of."""
        if self.rules.features != "raw" and fewest < self.rules.min_prototype:
            text = f"a prototype is of fewer than {self.rules.min_prototype} images"
            self._raise([_refusal("min_prototype", text)])

    def unnoised(self, what: str) -> None:
        """Refuse what a private job would send of patients without noise."""
        self._raise([_refusal("dp", f"{what} would leave without noise, beside differential privacy")])

    def within_privacy(self, private: bool, task: str) -> Policy:
        """Return the rules for the numbers of a task's reply: of a private job nothing measured leaves but
        what the hospital put outside epsilon.

        Of training, steps and times depend on the plan and not on patients; epsilon and delta are facts of
        the protection, which `metrics` does not withhold.
        """
        if not private:
            return self
        outside = self.rules.dp.outside if self.rules.dp is not None else ()
        if task == "fit":
            kept: Any = (*UNCOUNTED, *self.metrics(dict.fromkeys(OF_THE_PLAN)))
        elif MEASURED.get(task) in outside:
            kept = self.rules.metrics
        else:
            kept = "none"
        return replace(self, rules=self.rules.model_copy(update={"metrics": kept}))

    def sketch(self) -> None:
        """Check whether a sketch of the site's knowledge graph may leave."""
        if self.rules.knowledge_sketch == "deny":
            self._raise([_refusal("knowledge_sketch", "no sketch of the knowledge graph may leave")])

    def exact(self) -> None:
        """Check whether the site takes part in exact comparison of knowledge graphs."""
        if self.rules.knowledge_exact == "deny":
            text = "no exact size of the knowledge graph may be told; it is 'deny' unless a site allows it"
            self._raise([_refusal("knowledge_exact", text)])

    def counted(self, what: str, examples: int) -> None:
        """Check whether something about `examples` examples may leave; `what` names it in a refusal."""
        self._raise(self._too_few(what, examples))

    def is_enough(self, examples: int) -> bool:
        """Return whether numbers about so many examples may leave, be it inside a sum."""
        return examples >= self.rules.min_examples

    def volume(self, before: int, size: int) -> None:
        """Check whether `size` bytes may follow the `before` bytes that left in the same round."""
        most = self.rules.max_bytes_per_round
        if most is not None and before + size > most:
            text = f"{size:,} bytes after {before:,} in the same round; at most {most:,} may leave"
            self._raise([_refusal("max_bytes_per_round", text)])

    def metrics(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics that may leave."""
        allowed = self.rules.metrics
        if allowed == "all":
            return dict(values)
        patterns = () if allowed == "none" else allowed
        return {name: value for name, value in values.items() if matches(name, patterns)}

    def digest(self) -> str:
        """Return the sha256 of the rules, by which the ledger shows that a site changed them."""
        text = json.dumps(self.rules.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def required(self) -> tuple[str, ...]:
        """Protections that every update must have: those of `require`, and masks where the site sets limits
        to masked sums. A limit that a job escapes by sending its updates bare would be none."""
        rules = self.rules
        masks = [item for item in rules.require if "mask" in item.split("|")]
        limited = rules.min_site_noise is not None or (rules.min_threshold is not None and not masks)
        return (*rules.require, "mask") if limited and "mask" not in masks else rules.require

    def _unprotected(self, protections: Collection[str]) -> list[Refusal]:
        has = " and ".join(sorted(protections)) or "none"
        return [
            _refusal(
                "require", f"updates must have the protection {item.replace('|', ' or ')}, they have {has}"
            )
            for item in self.required
            if not set(item.split("|")) & set(protections)
        ]

    def _not_allowed(self, names: Iterable[str]) -> list[Refusal]:
        held = [name for name in sorted(names) if not matches(name, self.rules.tensors)]
        if not held:
            return []
        more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
        names_shown = ", ".join(f"'{name}'" for name in held[:SHOWN]) + more
        return [_refusal("tensors", f"{names_shown} may not leave; {_allowed(self.rules.tensors)}")]

    def _too_few(self, what: str, examples: int) -> list[Refusal]:
        """Return the refusal; its text leaves the site, so it does not contain the number."""
        if self.is_enough(examples):
            return []
        fewest = self.rules.min_examples
        return [_refusal("min_examples", f"{what} is about fewer than {fewest} examples")]

    def _raise(self, refusals: Collection[Refusal]) -> None:
        if refusals:
            raise PolicyError(refusals, self.file)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a shell pattern matches the complete name; upper and lower case differ."""
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
    """Return what the rules mean, one sentence each, for the people who sign them."""
    rules = policy.rules
    lists = {
        "Jobs": rules.jobs,
        "Methods": rules.methods,
        "Submitters": rules.submitters,
        "Organisations": rules.organisations,
        "Roles": rules.roles,
        "Tensors": rules.tensors,
    }
    words = [f"{what} only: {', '.join(given)}." for what, given in lists.items() if given != ANY]
    if rules.unsigned_jobs:
        words.append("Jobs that no admin of the federation signed may run.")
    words += [f"Every update must have: {item.replace('|', ' or ')}." for item in rules.require]
    if rules.min_sites > 1:
        words.append(f"At least {rules.min_sites} sites must take part.")
    if rules.plugins:
        words.append(f"Packages whose code may run: {', '.join(rules.plugins)}.")
    if rules.partners is not None:
        words.append(f"Sites it takes part with: {', '.join(rules.partners) or 'none'}.")
    if rules.min_threshold is not None:
        words.append(
            f"Updates leave in masked sums, which at least {rules.min_threshold} sites open together."
        )
    if rules.min_site_noise is not None:
        words.append(
            f"Updates leave in masked sums with noise of {rules.min_site_noise:g} times a site's norm."
        )
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
    if not rules.resume:
        words.append("No job may go on with the run of an earlier one.")
    if rules.train_losses:
        words.append("Losses of training examples may be measured for a job.")
    if rules.features == "prototypes":
        words.append("Means of image features may leave.")
    if rules.features == "raw":
        words.append("Features of single images may leave.")
    if rules.min_prototype != PolicyConfig.model_fields["min_prototype"].default:
        words.append(f"A mean of image features is of {rules.min_prototype} images or more.")
    if rules.dp is not None:
        beside = f"; outside it: {', '.join(rules.dp.outside)}" if rules.dp.outside else ""
        words.append(
            f"Patients train with differential privacy only, up to an epsilon of {rules.dp.epsilon:g} at "
            f"delta {rules.dp.delta:g} over all jobs{beside}."
        )
    if rules.metrics != "all":
        allowed = "none" if rules.metrics == "none" else ", ".join(rules.metrics)
        words.append(f"Metrics that may leave: {allowed}.")
    return words or ["No rule of its own: any admitted class, any method, declared tensors only."]
