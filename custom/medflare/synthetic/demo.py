# SPDX-License-Identifier: Apache-2.0
"""The three demo hospitals and the unseen fourth as folders, with the site.yaml that a simulation reads."""

from __future__ import annotations

from pathlib import Path

from medflare.synthetic.hospitals import contact_sheet, generate, write_hospital
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL


def write_demo(
    out: Path, patients: int = 0, size: int = 128, seed: int = 0, sheet: bool = True
) -> dict[str, int]:
    """Writes `<hospital>/` each, `site.yaml` and `contact_sheet.png`; hospital -> patients.

    Args:
        patients: of each hospital; 0 for each one's own number.
    """
    hospitals = [hospital.with_seed(seed) for hospital in (*DEMO_HOSPITALS, UNSEEN_HOSPITAL)]
    counts = {hospital.name: patients or hospital.patients for hospital in hospitals}
    for hospital in hospitals:
        write_hospital(hospital, out / hospital.name, counts[hospital.name], size=size)
    lines = ["# The synthetic hospitals, keyed by site name; folders count from this file.", "sites:"]
    for name in counts:
        lines += [f"  {name}:", f"    cohort: {{format: manifest, root: {name}}}"]
    (out / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if sheet:
        shown = [study for hospital in hospitals for study in generate(hospital, 6, size=192)]
        contact_sheet(shown, 6).save(out / "contact_sheet.png")
    return counts
