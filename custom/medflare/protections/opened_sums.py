# SPDX-License-Identifier: Apache-2.0
"""Memory of the masked sums that a site has helped to open, in all runs and jobs of its kit.

Two sums of the same updates over different sites differ by the updates of the sites in which they differ.
Run ids, job ids, numbers of rounds and the plan come from the server, and a new job begins with fresh local
state, so none of them tells whether updates are the same. What makes them so is the state that they start
from. Hence the rule:

    From one state a site helps to open one sum: a second one only over the same sites with the same weights.

Why that is enough. A sum opens only with shares of more than half of the sites in it (the threshold is a
majority), and a site gives its shares in `reveal`, after the memory is on disk. Suppose that m > 1 different
sums from one state, over N sites together, combined to a single site's update. Every other site would have to
be in two of them or more, or its update could not cancel: 2N - 1 memberships at least. But each sum has more
revealing sites than others, and nobody reveals for two: 2N - m memberships at most. So m is 1, and one sum is
over `min_sites` sites or more. With c sites that collude with the server the same count holds while
c < 2t - n, as for everything else in this protocol.

A round that is lost before `reveal` has opened nothing and is not remembered, so that an honest server may
repeat it with whoever is left. One that is lost later (too few shares, or somebody sent noise) is repeated
over the same sites, since its state has not changed (`MaskedServer.open_round`); where that cannot be, the
sites that revealed step out of rounds until the state is another one. They say so before they train.

Weights belong to the rule because sums over the same sites with different weights are different equations in
the same unknowns: with as many weightings as there are sites they can be solved.

The plan does not belong to it. Steps, seed, learning rate and the number of the round change an update a
little, and the difference of two sums would be one site's update plus these little changes. Visits are the
exception: a learner that trains on one visit of its patients at a time has other examples in each.

What a site measures on a state leaves in sums too, under the same rule: of one state and one split a site
helps to open one sum, a second one only over the same sites and measured in the same way (the split stands in
the state's key; limit, hints, settings and names of metrics are weights). These sums and those of updates
have different keys. Why that opens nothing: the count above is about sums of the same unknowns, of which a
site's must be in two to cancel. What a site measures (n, and n times a loss or a score) is another unknown
than its update from the same state, and a validation another than a test, whose examples are others; a sum of
one kind cancels nothing in a sum of another. So the count holds for each kind by itself, and m is 1 in each.
With one key for all, a validation that a site missed would end the run: the next round's updates start from
the very state that was measured.

What remains: a server that changes the state a little in every round has sums of nearly the same updates. A
fixed roster (the policy's `min_sites` as large as the federation) leaves no two sums over different sites;
otherwise only differential privacy bounds it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.core.errors import UpdateError
from medflare.core.tensors import SharedSpec, State
from medflare.wire.digest import json_digest, state_digest
from medflare.wire.durable import write_json
from medflare.wire.folders import make_folder

FOLDER = "opened_sums"
"""Folder of a kit, beside `local_state`; a file for each state."""


def state_key(state: State, shared: SharedSpec, data: Any) -> str:
    """Return the digest of what updates start from.

    Args:
        state: as received. What does not change an update must not change the digest: tensors are compared
            in the dtypes in which the learner takes them, and -0.0 is 0.0.
        data: what else names the examples that are looked at; JSON types.
    """
    tensors = {name: state[name].to(dtype) + 0 for name, (_, dtype) in shared.items() if name in state}
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(f"{state_digest(tensors)}|{text}".encode()).hexdigest()


def weights_key(**values: Any) -> str:
    """Return the digest of everything by which a server can have sites weigh their updates otherwise."""
    return json_digest(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOrigin:
    """Start of a sum's updates (`state_key`), and their weights (`weights_key`)."""

    state: str
    weights: str


class OpenedSums:
    """A folder with a file for each state from which this site has helped to open a sum.

    Files are written as a whole and reach the disk before anything leaves; a lock keeps two jobs of one kit
    from opening two sums of one state at the same moment. A file that cannot be read refuses.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self, origin: SumOrigin, sites: Collection[str]) -> None:
        """Raise UpdateError if another sum of updates from this state was opened than one over `sites`."""
        file = self._file(origin.state)
        if not file.exists():
            return
        before, weights = self._read(file)
        if (before, weights) == (set(sites), origin.weights):
            return
        other = f"over {', '.join(sorted(before))}" if before != set(sites) else "with other weights"
        raise UpdateError(
            f"this site has helped to open another sum of updates from this very state, {other}. Both sums "
            "together could tell one site's update, so it takes no part in this one. Repeat the round with "
            "exactly the sites and settings of the first, or start a run with another seed. To allow it, "
            f"this hospital's people remove {FOLDER}/{file.name} from its kit."
        )

    def remember(self, origin: SumOrigin, sites: Collection[str]) -> None:
        """Write down that this site helps to open a sum; UpdateError as in `check`."""
        make_folder(self.folder)
        with self._locked():
            self.check(origin, sites)
            file = self._file(origin.state)
            if not file.exists():
                write_json(file, {"sites": sorted(sites), "weights": origin.weights})

    def _file(self, state: str) -> Path:
        return self.folder / f"{state}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, which ends with the process that holds it."""
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self, file: Path) -> tuple[set[str], str]:
        try:
            entry: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return {str(site) for site in entry["sites"]}, str(entry["weights"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UpdateError(
                f"{FOLDER}/{file.name} cannot be read: over which sites a sum of updates from this state was "
                "opened is not known, so this site takes part in no further one. This hospital's people may "
                "remove the file from its kit."
            ) from None
