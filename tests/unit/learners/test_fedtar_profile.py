# SPDX-License-Identifier: Apache-2.0
"""Profiles: what v_p holds and what it does not, unknown and impossible entries, the key of a site."""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any

import pytest

from medflare.core.errors import ConfigError, DataError
from medflare.data.records import Study
from medflare.learners.fedtar.profile import ProfileSettings, hashed, profiles, site_key

KEY = bytes(range(32))


def study(patient: str, number: int = 1, **given: Any) -> Study:
    return Study(study_id=f"{patient}-{number}", patient_id=patient, images=(), report="clear", **given)


def rows(*studies: Study, key: bytes | None = None, **settings: Any) -> dict[str, list[float]]:
    result = profiles(studies, ProfileSettings(**settings), key)
    return dict(zip(result.patients, result.values.tolist(), strict=True))


def test_age_is_in_centuries_and_sex_is_a_number() -> None:
    assert rows(study("a", age=50, sex="F"), study("b", age=91, sex="M")) == {
        "a": [0.5, 0.0],
        "b": [0.91, 1.0],
    }


def test_a_patient_has_one_profile_with_the_age_of_the_first_visit_that_tells_it() -> None:
    result = rows(
        study("a", 2, day=400.0, age=61),
        study("a", 1, day=0.0, sex="M"),
        study("a", 3, day=900.0, age=62, sex="M"),
    )
    assert result == {"a": [0.61, 1.0]}


def test_what_is_not_known_is_nan() -> None:
    (age, sex), *_ = rows(study("a")).values()
    assert math.isnan(age)
    assert math.isnan(sex)


def test_the_identifier_is_not_part_of_a_profile_unless_asked_for() -> None:
    assert ProfileSettings().names == ("age", "sex")
    one, two = (rows(study(name, age=40, sex="F"))[name] for name in ("a", "b"))
    assert one == two
    one, two = (rows(study(n, age=40, sex="F"), key=KEY, hash_feature=True)[n] for n in ("a", "b"))
    assert one[:2] == two[:2]
    assert one[2] != two[2]


def test_the_hash_depends_on_the_key_of_the_site_and_is_uniform() -> None:
    assert hashed("12345", KEY) != hashed("12345", KEY[::-1])
    values = [hashed(str(number), KEY) for number in range(2000)]
    assert all(0 <= value < 1 for value in values)
    mean = sum(values) / 2000
    assert mean == pytest.approx(0.5, abs=0.03)
    assert sum((value - mean) ** 2 for value in values) / 2000 == pytest.approx(1 / 12, abs=0.005)


def test_a_hash_without_a_key_is_refused() -> None:
    for key in (None, b"short"):
        with pytest.raises(ConfigError, match="needs a key of this site"):
            rows(study("a"), key=key, hash_feature=True)


def test_covariates_are_scaled_to_their_range() -> None:
    given = {"covariates": {"packs": (0, 40)}, "sex": False}
    assert rows(study("a", age=50, extra={"packs": "10"}), **given) == {"a": [0.5, 0.25]}
    assert math.isnan(rows(study("a", age=50), **given)["a"][1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"age": 214.0}, "patient 'p7', study 'p7-1': age is 214.0, expected 0 to 130"),
        ({"age": -1.0}, "age is -1.0"),
        ({"age": math.inf}, "age is inf"),
        ({"sex": "X"}, "sex is 'X', expected F, M or nothing"),
        ({"extra": {"packs": "many"}}, "packs is 'many', expected 0 to 40"),
    ],
)
def test_an_impossible_entry_names_the_patients_row(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        rows(study("a", age=50, sex="F"), study("p7", **given), covariates={"packs": (0, 40)})


def test_the_row_in_the_file_is_named_where_the_reader_knows_it() -> None:
    with pytest.raises(DataError, match=r"study 'a-1' \(manifest.csv:12\): age is 200"):
        rows(study("a", age=200.0, place="manifest.csv:12"))


def test_a_sex_that_changes_names_both_rows() -> None:
    with pytest.raises(DataError, match=r"study 'a-2': sex is 'M', and 'F' in study 'a-1'"):
        rows(study("a", 1, sex="F", day=0.0), study("a", 2, sex="M", day=9.0))


def test_all_problems_come_together() -> None:
    with pytest.raises(DataError, match=r"'p0'.*'p7'.*; and 4 more\. Correct or empty"):
        rows(*[study(f"p{number:x}", age=200.0) for number in range(12)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"age": False, "sex": False}, "nothing is left"), ({"covariates": {"packs": (4, 4)}}, "from 4 to 4")],
)
def test_settings_that_make_no_profile_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows(study("a"), **settings)


def test_patients_stand_in_order_of_id() -> None:
    assert profiles([study(name, age=40) for name in ("c", "a", "b")], ProfileSettings()).patients == (
        "a",
        "b",
        "c",
    )


def test_a_site_without_patients_has_an_empty_table() -> None:
    assert profiles([], ProfileSettings()).values.shape == (0, 2)


def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "local" / "profile_key"
    key = site_key(file)
    assert site_key(file) == key
    assert len(key) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("not a key")
    with pytest.raises(ConfigError, match=r"profile_key: holds no key"):
        site_key(file)
