# SPDX-License-Identifier: Apache-2.0
"""The three demo hospitals and the unseen fourth as folders, with the site.yaml that a simulation reads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

from medflare.synthetic.hospitals import contact_sheet, generate, write_hospital
from medflare.synthetic.policy import POLICY
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL, HospitalProfile
from medflare.synthetic.site_files import HEAD


def write_demo(
    out: Path, patients: int = 0, size: int = 128, seed: int = 0, sheet: bool = True, workers: int = 0
) -> dict[str, int]:
    """Write `<hospital>/` each, `site.yaml` and `contact_sheet.png`.

    Args:
        patients: of each hospital; 0 for each one's own number.
        workers: processes that write hospitals at the same time; 0 for this one alone.

    Returns:
        Hospital -> patients.
    """

    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers else None
    written: list[Future[Path]] = []

    def write(hospital: HospitalProfile, count: int) -> str:
        if pool is None:
            write_hospital(hospital, out / hospital.name, count, size=size)
        else:
            written.append(pool.submit(write_hospital, hospital, out / hospital.name, count, size=size))
        return ""

    with pool or nullcontext():
        hospitals, counts = write_demo_hospitals(out, patients, seed, write)
        if sheet:
            shown = [study for hospital in hospitals for study in generate(hospital, 6, size=192)]
            contact_sheet(shown, 6).save(out / "contact_sheet.png")
        for future in written:
            future.result()
    return counts


def write_demo_hospitals(
    out: Path, patients: int, seed: int, write: Callable[[HospitalProfile, int], str]
) -> tuple[list[HospitalProfile], dict[str, int]]:
    """Write all hospitals of the demo and the site.yaml that reads them.

    Args:
        patients: of each hospital; 0 for each one's own number.
        write: (hospital, patients) writes its folder and returns further settings of its cohort.

    Returns:
        The hospitals of this seed; hospital -> patients.
    """
    hospitals = [hospital.with_seed(seed) for hospital in (*DEMO_HOSPITALS, UNSEEN_HOSPITAL)]
    counts = {hospital.name: patients or hospital.patients for hospital in hospitals}
    lines = [f"{HEAD}, keyed by site name; folders count from this file.", "sites:"]
    for hospital in hospitals:
        settings = write(hospital, counts[hospital.name])
        lines += [
            f"  {hospital.name}:",
            f"    cohort: {{format: manifest, root: {hospital.name}{settings}}}",
            POLICY,
        ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return hospitals, counts
