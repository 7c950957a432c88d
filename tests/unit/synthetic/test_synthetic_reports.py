# SPDX-License-Identifier: Apache-2.0
"""Facts about the reports: codes are those of the text, styles differ, words follow the findings."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from medflare.core.conditions import CONDITIONS, Code
from medflare.synthetic import (
    DEMO_HOSPITALS,
    STYLES,
    UNSEEN_HOSPITAL,
    generate_reports,
    pretraining_hospitals,
)
from medflare.synthetic.findings import ChestFinding
from medflare.synthetic.styles.reports import write_report

KEYWORDS = {  # by hand, independent of the lexicon's tables: what a reader would look for
    "enlarged cardiomediastinum": r"mediastin",
    "cardiomegaly": r"cardiomegaly|heart|cardiac (size|silhouette|enlargement)",
    "lung opacity": r"opacit|opacification|haze|infiltrate",
    "lung lesion": r"nodule|lesion|mass",
    "edema": r"o?edema|congestion",
    "consolidation": r"consolidati",
    "pneumonia": r"pneumonia",
    "atelectasis": r"atelectasis|collapse",
    "pneumothorax": r"pneumothorax",
    "pleural effusion": r"effusion|pleural fluid",
    "pleural other": r"pleural (thickening|plaque|scarring)",
    "fracture": r"fracture",
    "support devices": r"tube|catheter|pacemaker|device|apparatus|lines",
}
NEGATIVE = r"\bno\b|\bnot\b|normal|unremarkable|resol|remov|without"
UNCERTAIN = r"possib|may |suspected|questionable|cannot be excluded|suggestion"


def read(report: str) -> tuple[int, ...]:
    """The 14 codes by keywords, sentence by sentence."""
    codes = dict.fromkeys(CONDITIONS, Code.BLANK)
    rank = [Code.BLANK, Code.NEGATIVE, Code.UNCERTAIN, Code.POSITIVE]
    for sentence in re.split(r"\.(?:\s|$)|IMPRESSION:|Conclusion:|FINDINGS:|[A-Z][a-z]+: ", report):
        low = sentence.lower()
        code = Code.POSITIVE
        if re.search(UNCERTAIN, low):
            code = Code.UNCERTAIN
        elif re.search(NEGATIVE, low):
            code = Code.NEGATIVE
        for condition, words in KEYWORDS.items():
            if re.search(words, low) and rank.index(code) > rank.index(codes[condition]):
                codes[condition] = code
    abnormal = [c for c in CONDITIONS[:12] if codes[c] in (Code.POSITIVE, Code.UNCERTAIN)]
    codes["no finding"] = Code.BLANK if abnormal else Code.POSITIVE
    return tuple(int(codes[c]) for c in CONDITIONS)


@pytest.mark.parametrize("longitudinal", [False, True])
@pytest.mark.parametrize("style", list(STYLES))
def test_codes_are_those_of_the_text(style, longitudinal):
    profile = replace(DEMO_HOSPITALS[0], style=STYLES[style])
    for s in generate_reports(profile, 150, visits=(1, 3), longitudinal=longitudinal):
        assert read(s.report) == s.codes, s.report


def test_codes_are_those_of_the_text_in_mixed_styles():
    for profile in pretraining_hospitals(25):
        for s in generate_reports(profile, 20, visits=(1, 2), longitudinal=True):
            assert read(s.report) == s.codes, s.report


def test_all_four_codes_occur_and_no_finding_takes_two():
    codes = np.array([s.codes for p in DEMO_HOSPITALS for s in generate_reports(p, 300)])
    assert set(np.unique(codes)) == {0, 1, 2, 3}
    assert set(np.unique(codes[:, 13])) == {0, 1}


def test_uncertain_words_come_from_subtle_findings_only():
    for s in generate_reports(UNSEEN_HOSPITAL, 300):
        subtle = {f.condition for f in s.findings if f.uncertain}
        assert {CONDITIONS[i] for i, c in enumerate(s.codes) if c == Code.UNCERTAIN} <= subtle


def test_reports_are_plain_ascii_of_a_readable_length():
    for p in (*DEMO_HOSPITALS, UNSEEN_HOSPITAL):
        lengths = [len(s.report.split()) for s in generate_reports(p, 400)]
        assert all(
            s.report.isascii() and "  " not in s.report and "{" not in s.report
            for s in generate_reports(p, 50)
        )
        assert 20 <= np.median(lengths) <= 60
        assert np.percentile(lengths, 95) < 70


def test_the_same_findings_read_differently_in_every_style():
    findings = [
        ChestFinding(condition="cardiomegaly", extent=0.6),
        ChestFinding(condition="pleural effusion", extent=0.9, side="left"),
    ]
    texts = {write_report(findings, style, np.random.default_rng(0))[0] for style in STYLES.values()}
    assert len(texts) == len(STYLES)


def _bigrams(text: str) -> set[tuple[str, str]]:
    words = text.lower().split()
    return set(itertools.pairwise(words))


def test_words_follow_the_findings_within_a_style_and_not_across():
    """Two writings of the same study share most bigrams in one style and few in another."""
    within, across = [], []
    for s in generate_reports(DEMO_HOSPITALS[0], 60):
        texts = [
            write_report(s.findings, p.style, np.random.default_rng(seed))[0]
            for p, seed in (
                (DEMO_HOSPITALS[0], 1),
                (DEMO_HOSPITALS[0], 2),
                (DEMO_HOSPITALS[1], 1),
                (DEMO_HOSPITALS[2], 1),
            )
        ]
        a, b, c, d = map(_bigrams, texts)
        within.append(len(a & b) / len(a))
        across += [len(a & c) / len(a), len(a & d) / len(a)]
    assert np.mean(within) > 0.7
    assert np.mean(across) < 0.3


def test_longitudinal_reports_say_what_changed():
    f = ChestFinding(condition="pleural effusion", extent=0.6, side="right", change="increased")
    gone = ChestFinding(condition="pneumonia", extent=0.6, side="left", zone="mid", change="resolved")
    text, codes = write_report([f, gone], STYLES["prose"], np.random.default_rng(3))
    assert "increased since the prior study" in text
    assert "has resolved" in text
    assert codes[CONDITIONS.index("pneumonia")] == Code.NEGATIVE


def test_single_visit_reports_make_no_comparison():
    for p in DEMO_HOSPITALS:
        for s in generate_reports(p, 100, visits=(2, 3)):
            assert not re.search(r"prior|previous|interval|resolved|unchanged|stable|new\b", s.report)


def test_a_style_with_an_unknown_vocabulary_is_refused():
    with pytest.raises(ValueError, match="choose one of american"):
        replace(STYLES["prose"], vocabulary="klingon")
    with pytest.raises(ValueError, match="not conditions"):
        replace(STYLES["prose"], negatives=("flu",))
