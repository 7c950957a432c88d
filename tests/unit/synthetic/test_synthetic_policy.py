"""What synthetic hospitals agree to, so that every rule and setting of a job can be tried on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import load_site_file
from medflare.synthetic.demo import write_demo
from medflare.synthetic.follow_up import write_follow_up_demo
from medflare.synthetic.knowledge import write_questions_demo, write_summaries_demo
from medflare.synthetic.notes import write_notes_demo
from medflare.synthetic.policy import AGREED

WRITERS: dict[str, Callable[[Path], Any]] = {
    "reports": lambda folder: write_demo(folder, patients=3, size=32, sheet=False),
    "visits": lambda folder: write_follow_up_demo(folder, 2, patients=3, size=32, sheet=False),
    "extraction": lambda folder: write_notes_demo(folder, notes=3),
    "questions": lambda folder: write_questions_demo(folder, 2, questions=20),
    "summaries": lambda folder: write_summaries_demo(folder, 2, reports=20),
}


@pytest.mark.parametrize("task", WRITERS)
def test_made_up_hospitals_agree_to_what_a_real_one_denies_by_default(task: str, tmp_path: Path) -> None:
    WRITERS[task](tmp_path)
    sites = load_site_file(tmp_path / "site.yaml")
    hospitals = {name: site.policy for name, site in sites.items() if name != "server"}
    agreed = PolicyConfig.model_validate(AGREED)
    assert hospitals
    assert all(policy == agreed != PolicyConfig() for policy in hospitals.values())
