# SPDX-License-Identifier: Apache-2.0
"""Sites that weigh themselves must all have notes to do it by, before round 1."""

import pytest

from medflare.core.errors import RunError
from medflare.federation.server.preparation import require_shared_notes


def facts(**digests: str | None) -> dict[str, dict[str, dict[str, object]]]:
    backbone = {"name": "b", "fingerprint": "f"}
    notes = {site: {"notes": 5, "sha256": digest} if digest else None for site, digest in digests.items()}
    return {site: {"describe": {"backbone": backbone, "validation": told}} for site, told in notes.items()}


def test_sites_with_notes_may_begin_and_those_without_are_named_with_what_to_do() -> None:
    require_shared_notes(facts(a="0" * 64, b="0" * 64))
    with pytest.raises(RunError, match=r"b, c named none.*'validation' in site.yaml"):
        require_shared_notes(facts(a="0" * 64, b=None, c=None))
