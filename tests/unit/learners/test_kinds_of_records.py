# SPDX-License-Identifier: Apache-2.0
"""A site whose records are of another kind than a method reads is told so when its learner is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from medflare.core.errors import ConfigError
from medflare.data.cohort import KINDS
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.learners.registry import build_learner, task_of

FOLDERS = {"notes_jsonl": "notes", "manifest": "images"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three notes, and a small hospital of images."""
    from medflare.synthetic import DEMO_HOSPITALS, write_hospital
    from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital

    root = tmp_path_factory.mktemp("records")
    write_notes_hospital(NOTE_HOSPITALS[0], root / "notes", 3, "jsonl")
    write_hospital(DEMO_HOSPITALS[0], root / "images", 6)
    return root


@pytest.mark.parametrize(
    ("method", "form", "reads", "holds"),
    [
        ("fedmrg", "notes_jsonl", "studies", "notes"),
        ("fedvit_gpt2", "notes_jsonl", "studies", "notes"),
        ("r2gen", "notes_jsonl", "studies", "notes"),
        ("fed_medlora", "manifest", "notes", "studies"),
        ("token_classification", "manifest", "notes", "studies"),
        ("summarisation", "notes_jsonl", "summaries", "notes"),
        ("question_answering", "manifest", "questions", "studies"),
    ],
)
def test_it_is_refused_by_name(folders: Path, method: str, form: str, reads: str, holds: str) -> None:
    site = SiteConfig(name="north", cohort=(CohortConfig(format=form, root=folders / FOLDERS[form]),))
    with pytest.raises(ConfigError) as error:
        build_learner(method, {}, site, 0)
    expected = f"site 'north': this job reads {KINDS[reads]}, and the site's cohort holds {KINDS[holds]}."
    assert expected in str(error.value)
    assert str(folders) not in str(error.value), "the text leaves the site"
    assert task_of(method).reads == reads
