# SPDX-License-Identifier: Apache-2.0
"""What a site tells of its visits' reports, with a learner that copies what it is told to copy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from medflare.data.settings.site import load_site
from medflare.data.visit_samples import VisitSamples, open_visits
from medflare.learners.fedtar.evaluation import codes_before, curve_metrics, finish_site, visit_rows
from medflare.models.report_generator import DecodingSettings
from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.follow_up import write_follow_up
from medflare.tasks.prediction_files import read_predictions

VISITS = 3


class Copyist:
    """Writes the reference, or the report of the visit before."""

    seed, fewest = 0, 1
    scorers: Mapping[str, str | Path] = MappingProxyType({})

    def __init__(self, samples: VisitSamples, copies: str, visits: int = VISITS) -> None:
        self.samples, self.copies, self.site = samples, copies, samples.cohort.name
        self.settings = SimpleNamespace(decoding=DecodingSettings(beams=1), visits=visits)
        self.decodings: list[DecodingSettings | None] = []

    def draft(self, rows: list[int], decoding: DecodingSettings | None = None) -> list[str]:
        self.decodings.append(decoding)
        if self.copies == "reference":
            return self.samples.reports(rows)
        return [prior or "" for prior in self.samples.priors(rows)]

    def rows_loss(self, rows: list[int]) -> float:
        return float(len(rows))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> VisitSamples:
    folder = tmp_path_factory.mktemp("visits")
    write_follow_up(DEMO_HOSPITALS[0], folder / "site-1", 60, VISITS + 1, size=32)
    lines = ["sites:", "  site-1:", "    cohort: {format: manifest, root: site-1, visits: {order: visit}}"]
    (folder / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return open_visits(load_site(folder / "site.yaml", "site-1"), 32)


def test_visits_beyond_those_of_the_job_are_not_scored(samples: VisitSamples) -> None:
    numbers = {samples.visits[row].number for row in visit_rows(Copyist(samples, "reference"), "test", None)}
    assert numbers == {1, 2, 3}
    assert samples.last == 4


def test_the_reference_scores_full_marks_at_every_visit(samples: VisitSamples, tmp_path: Path) -> None:
    (found,) = finish_site(Copyist(samples, "reference"), tmp_path, None)
    assert (found.site, found.role, found.adapter, found.split) == (
        "site-1",
        "participant",
        "generic",
        "test",
    )
    for visit in range(1, VISITS + 1):
        assert found.metrics[f"visit_{visit}/bleu_4"].value == pytest.approx(1)
        assert found.metrics[f"visit_{visit}/rouge_l"].value == pytest.approx(1)
    assert found.metrics["visits/bleu_4"].value == pytest.approx(1)
    assert found.metrics["change_f1"].value == found.metrics["change_moved_f1"].value == 1
    assert found.metrics["change_opposite"].value == 0
    assert "visit_1/change_f1" not in found.metrics
    assert found.studies == len(visit_rows(Copyist(samples, "reference"), "test", None))


def test_the_report_before_says_what_is_over(samples: VisitSamples, tmp_path: Path) -> None:
    (found,) = finish_site(Copyist(samples, "prior"), tmp_path, None)
    assert found.metrics["visit_1/bleu_1"].value == 0
    assert 0 < found.metrics["change_f1"].value < 0.7
    assert found.metrics["change_f1"].low < found.metrics["change_f1"].value < found.metrics["change_f1"].high
    mean = sum(found.metrics[f"visit_{t}/rouge_l"].value for t in (1, 2, 3)) / 3
    assert found.metrics["visits/rouge_l"].value == pytest.approx(mean)


def test_predictions_hold_a_patients_course(samples: VisitSamples, tmp_path: Path) -> None:
    (found,) = finish_site(Copyist(samples, "reference"), tmp_path, None)
    assert found.predictions is not None
    items = read_predictions(tmp_path / found.predictions)
    patient = max(
        {item.patient_id for item in items}, key=lambda who: sum(i.patient_id == who for i in items)
    )
    course = [item for item in items if item.patient_id == patient]
    first, second = course[:2]
    assert [item.visit for item in course] == sorted(item.visit or 0 for item in course)
    assert (first.days, first.before_codes, first.prior) == (None, None, None)
    assert second.days is not None
    assert second.days > 0
    assert second.before_codes == first.gold_codes
    assert second.prior == first.reference
    assert first.image is not None
    assert (tmp_path / first.image).resolve().is_file()


def test_a_missed_visit_is_compared_with_the_one_that_was_kept(samples: VisitSamples) -> None:
    before = codes_before(samples)
    for row, visit in enumerate(samples.visits):
        first = row == 0 or samples.owners[row] != samples.owners[row - 1]
        expected = None if first else tuple(samples.codes[row - 1].tolist())
        assert before[row] == expected, visit.study.study_id


def test_curves_are_greedy_and_hold_the_loss(samples: VisitSamples) -> None:
    learner = Copyist(samples, "reference")
    learner.settings.decoding = DecodingSettings(beams=3, max_new_tokens=40)
    metrics = curve_metrics(learner, "val", 5)
    assert metrics["loss"] == 5
    assert metrics["bleu_4"] == pytest.approx(1)
    assert {"label_f1", "change_f1", "change_moved_f1"} <= metrics.keys()
    assert learner.decodings[0] is not None
    assert (learner.decodings[0].beams, learner.decodings[0].max_new_tokens) == (1, 40)


def test_a_site_without_test_visits_tells_nothing(samples: VisitSamples, tmp_path: Path) -> None:
    learner = Copyist(samples, "reference", visits=0)
    assert finish_site(learner, tmp_path, None) == []
    assert curve_metrics(learner, "val", None) == {}
    assert not list(tmp_path.iterdir())


def test_a_hospital_tells_no_scores_of_fewer_reports_than_its_policy_allows(
    samples: VisitSamples, tmp_path: Path
) -> None:
    learner = Copyist(samples, "reference")
    learner.fewest = 10**6
    (found,) = finish_site(learner, tmp_path, None)
    assert "bleu_4" in found.metrics, "of all reports: the site checks that number itself"
    assert not [name for name in found.metrics if name.startswith(("visit", "change", "first_visit"))]
    assert not [name for name in curve_metrics(learner, "val", None) if name.startswith("change")]
