# SPDX-License-Identifier: Apache-2.0
"""D_v of a text task at a site: the records by which it weighs its own update (ML-15).

Disjoint from what is trained and tested on; a digest identifies them, so that the server can
compare sites without seeing a text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from medflare.core.errors import ConfigError, DataError
from medflare.core.site_description import SharedRecords
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig
from medflare.tasks.scoring import Record, TextRecords

SHOWN = 8
"""Records that an error lists."""


class Known(NamedTuple):
    """A record's name and split, and the text by which it is recognised."""

    name: str
    split: str
    text: str


def load_shared_texts(
    site: SiteConfig, cohort: Cohort, task: TextRecords[Any, Record, Any], known: Callable[[Record], Known]
) -> Cohort | None:
    """Return the records under `validation` in site.yaml, of every split; None without that entry.

    Raises:
        DataError: one of them is also in the site's training or test split.
    """
    if site.validation is None:
        return None
    shared = load_cohort(site.model_copy(update={"cohort": (site.validation,)}), f"{site.name}, validation")
    local, common = (map(known, task.records(one)) for one in (cohort, shared))
    check_disjoint(site.name, local, common)
    return shared


def check_disjoint(site: str, local: Iterable[Known], shared: Iterable[Known]) -> None:
    """Refuse shared records that the site trains or tests on; spacing and case do not count.

    Raises:
        DataError: naming these records; its text stays at the site.
    """
    not_validated = {_plain(item.text): item for item in local if item.split != "val"}
    both = [(item, not_validated[_plain(item.text)]) for item in shared if _plain(item.text) in not_validated]
    if not both:
        return
    listed = [f"'{one.name}' is '{other.name}' of the split {other.split}" for one, other in both[:SHOWN]]
    more = f"; and {len(both) - SHOWN} more" if len(both) > SHOWN else ""
    raise DataError(
        f"site '{site}': {len(both)} of the shared validation records are among the site's own: "
        f"{'; '.join(listed)}{more}. A record that weighs updates must not be trained or tested on. Take "
        f"these records out of 'cohort', or name others under 'validation' in site.yaml, at every site."
    )


def none_shared(site: str) -> ConfigError:
    """Return the error for a site that must weigh its own update and has nothing to weigh it by."""
    return ConfigError(
        f"site '{site}': rule 'influence' in client mode needs the shared validation notes. "
        "Name them under 'validation' in site.yaml (format and root, as under 'cohort')."
    )


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def digest_of(rows: Sequence[Sequence[Any]]) -> SharedRecords | None:
    """Return count and SHA-256 of records, whatever their order; None of none.

    Args:
        rows: of each record what the loss on it depends on, JSON types.
    """
    if not rows:
        return None
    each = sorted(hashlib.sha256(json.dumps(row).encode()).hexdigest() for row in rows)
    return SharedRecords(notes=len(rows), sha256=hashlib.sha256("\n".join(each).encode()).hexdigest())
