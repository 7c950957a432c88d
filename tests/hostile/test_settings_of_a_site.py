# SPDX-License-Identifier: Apache-2.0
"""A job's settings can ask for a site's variables; the site answers nothing then, and sends no settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fed_harness import Federation, completed
from lying_server import LyingServer

from medflare.core.errors import ConfigError
from medflare.protocol.submitted_job import read_submitted, settings_digest

TEMPLATE = "{$HOSPITAL_DB_PASSWORD} {WORKSPACE}"
SUBSTITUTED = "hunter2 /srv/hospital"


def test_a_site_with_substituted_settings_tells_nothing(lying_server: Callable[..., LyingServer]) -> None:
    server = lying_server(settings={"variant": SUBSTITUTED})
    submitted = {"settings_sha256": settings_digest("toy", {"variant": TEMPLATE})}
    answer = server.send("site-1", "prepare", options=submitted)
    assert answer.refused
    assert "not those that the server says were submitted" in answer.text
    assert not any(word in str(answer) for word in ("hunter2", "srv", "variant"))


@pytest.mark.parametrize("options", [{"settings_sha256": ""}, {"settings_sha256": None}])
def test_no_digest_is_no_way_around(
    lying_server: Callable[..., LyingServer], options: dict[str, Any]
) -> None:
    assert lying_server().send("site-1", "prepare", options=options).refused


def test_settings_are_never_sent_back(lying_server: Callable[..., LyingServer]) -> None:
    server = lying_server(settings={"width": 5, "marker": "not-to-be-echoed"})
    answer = server.send("site-1", "prepare")
    assert answer.failure == {}
    assert "settings" not in answer.facts
    assert "not-to-be-echoed" not in str(answer.facts)


def test_the_record_holds_the_settings_as_they_were_submitted(federation: Callable[..., Federation]) -> None:
    run = federation(settings={"width": 5})
    assert completed(run).configuration["settings"] == {"width": 5}


def test_a_site_whose_copy_differs_takes_no_part(federation: Callable[..., Federation]) -> None:
    run = federation(controller={"min_responses": 2}, settings={"width": 4})
    args = run.executors["site-2"].args
    run.executors["site-2"].args = args.model_copy(update={"settings": {"width": 4, "x": SUBSTITUTED}})
    record = completed(run)
    assert set(record.rounds[0].accepted) == {"site-1", "site-3"}
    assert "hunter2" not in record.model_dump_json()


def test_a_server_without_the_sites_configuration_says_what_to_do(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r'deploy_map.*\["@ALL"\]'):
        read_submitted(tmp_path)


def test_a_job_deployed_again_with_other_settings_is_not_the_job_that_was_prepared(
    lying_server: Callable[..., LyingServer],
) -> None:
    server = lying_server(settings={"width": 4})
    server.prepare()
    state = server.initial_state()
    server.settings = {"width": 4, "variant": SUBSTITUTED}
    server.restart("site-1")
    answer = server.send("site-1", "fit", state)
    assert "other settings than at its first 'prepare'" in answer.text
    assert "hunter2" not in str(answer)
