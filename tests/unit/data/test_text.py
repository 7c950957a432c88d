# SPDX-License-Identifier: Apache-2.0
"""Cleaning and tokens of reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medflare.data.text import RULES, clean_report, tokens


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("The lungs are clear. No effusion.", "the lungs are clear . no effusion ."),
        ("Heart size normal.\nNo edema.", "heart size normal . no edema ."),
        ("1. Clear lungs. 2. No edema.", "clear lungs . no edema ."),
        ("Left-sided line, 2 cm.", "left-sided line 2 cm ."),
        ("Stable ___ nodule (3 mm).", "stable  nodule 3 mm ."),
        ("Clear.. No edema...", "clear . no edema ."),
        ('A "hazy" and/or streaky area; T<5 @ base.', "a hazy andor streaky area t5  base ."),
    ],
)
def test_r2gen_rules(text: str, cleaned: str) -> None:
    assert clean_report(text, "r2gen") == cleaned


def test_r2gen_keeps_empty_sentences() -> None:
    """The published filter compares a string with a list, so nothing is ever dropped."""
    assert clean_report("Clear lungs. ?. No edema.", "r2gen").split() == [
        "clear",
        "lungs",
        ".",
        ".",
        "no",
        "edema",
        ".",
    ]
    assert clean_report("", "r2gen") == " ."


def test_r2gen_keeps_hyphens_because_of_its_range() -> None:
    assert clean_report("x-ray: a:b;c<d=e>f?g@h[i]{j}", "r2gen") == "x-ray abcdefghij ."


def test_r2gen_knows_list_numbers_up_to_five_and_deletes_1_anywhere() -> None:
    assert clean_report("Grade 1. Next. 6. Last.", "r2gen") == "grade next . 6 . last ."


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("FINDINGS: The heart is normal.", "The heart is normal."),
        ("1. Clear lungs.  2. No edema.", "Clear lungs. No edema."),
        ("Normal chest x-XXXX.", "Normal chest x-."),
        ("The XXXX are clear .", "The are clear."),
        ("Seen on ___ and [**2101-1-1**].", "Seen on and."),
        ("Nodule of 1.5 cm, stable.", "Nodule of 1.5 cm, stable."),
        ("No effusion..\r\n\r\nNo edema.", "No effusion. No edema."),
        ("- No edema.\n- Clear lungs.", "No edema. Clear lungs."),
        ("No edema.\nElectronically signed by Dr. ___ at 10:15", "No edema."),
        ("Impression:\n\n1) Stable. 2) Clear.", "Stable. Clear."),
        ("", ""),
    ],
)
def test_clean_rules(text: str, cleaned: str) -> None:
    assert clean_report(text) == cleaned


def test_unknown_rules_are_named() -> None:
    with pytest.raises(ValueError, match=r"'r3gen'.*clean, r2gen"):
        clean_report("x", "r3gen")  # type: ignore[arg-type]


def test_tokens_are_lower_case_and_split_punctuation() -> None:
    assert tokens("No follow-up: 1.5 cm, (stable).") == [
        *("no", "follow-up", ":", "1.5", "cm", ",", "(", "stable", ")", ".")
    ]


@given(st.text())
def test_any_text_is_cleaned(text: str) -> None:
    for rules in RULES:
        assert isinstance(clean_report(text, rules), str)
    assert all(tokens(text))


@given(st.text(alphabet="abcX_ .,12\n-:", max_size=60))
def test_cleaning_twice_changes_no_words(text: str) -> None:
    once = clean_report(text)
    assert "  " not in once
    assert "___" not in once
