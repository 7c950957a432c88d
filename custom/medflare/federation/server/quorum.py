# SPDX-License-Identifier: Apache-2.0
"""Number of accepted replies that an exchange needs, and after which the other sites are stragglers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

SMALL = 3
"""Sites of a run that needs every one of them, unless the job says otherwise."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Numbers of accepted replies.

    Attributes:
        required: without so many the exchange has failed.
        min_responses: after so many the others have `straggler_timeout`; None where everybody is waited for.
            Training rounds do not wait; a large hospital's test takes longer than a small one's, so all else
            does.
        mandatory: sites among them without which the exchange has failed too.
        share: the others have this share of the time until then, in place of `straggler_timeout`.
    """

    required: int
    min_responses: int | None = None
    mandatory: frozenset[str] = frozenset()
    share: float | None = None

    @classmethod
    def of_round(
        cls, min_responses: int | None, sites: int, sampled: int | None = None, min_sites: int = 1
    ) -> Quorum:
        """Return the quorum of an exchange of updates.

        Args:
            min_responses: as the job sets it; None for all of up to three sites, and for all but one of more:
                one site's fault then costs that site. Everybody is waited for all the same.
            sites: of the run.
            sampled: how many clients were sampled; None where all sites train.
            min_sites: so many updates hide each other in a sum; 1 without a protection.

        Of sampled clients one is enough, or `min_sites`, unless the job wants more: nobody takes the part of
        who is missing. `min_responses` is never below `required`: under masks the first that reply are not
        enough to hide each other.
        """
        wanted = sites if min_responses is None else min_responses
        if sampled is None and min_responses is None:
            return cls(sites - 1 if sites > SMALL else sites)
        if sampled is None:
            return cls(wanted, wanted)
        required = max(1, min(sampled, max(min_sites, min_responses or 0)))
        return cls(required, max(required, min(wanted, sampled)))

    def everybody(self) -> Quorum:
        """Return the same requirement, with everybody waited for until the deadline."""
        return Quorum(self.required)

    def without(self, sites: Collection[str]) -> Quorum:
        """Return what is left to wait for, where the replies of some sites are there already.

        Where they are all that is needed, the others have `straggler_timeout`: a share of no time is none.
        """
        least = None if self.min_responses is None else max(0, self.min_responses - len(sites))
        return Quorum(
            required=max(0, self.required - len(sites)),
            min_responses=least,
            mandatory=self.mandatory - frozenset(sites),
            share=self.share if least else None,
        )


ANY = Quorum(1)
"""One reply is enough, and everybody is waited for until the deadline."""
OPTIONAL = Quorum(0)
"""No reply is needed, and everybody is waited for until the deadline."""
