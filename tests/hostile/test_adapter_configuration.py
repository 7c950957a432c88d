# SPDX-License-Identifier: Apache-2.0
"""The result's `adapter_config.json` comes from sites: it makes nobody who opens it load code or models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
from fed_harness import Federation
from lying_site import Lie, lying
from pydantic import ValidationError

from medflare.core.adapter_config import check_adapter_config
from medflare.core.site_description import SiteDescription
from medflare.wire.durable import read_json

GOOD = peft.LoraConfig(r=4, target_modules=["q_proj"], base_model_name_or_path="base").to_dict()
GOOD = {key: sorted(value) if isinstance(value, set) else value for key, value in GOOD.items()}
ATTACKS: dict[str, Any] = {
    "auto_mapping": {"base_model_class": "Evil", "parent_library": "os"},
    "megatron_core": "os",
    "megatron_config": {"x": 1},
    "revision": "refs/pr/666",
    "base_model_name_or_path": "../../etc/passwd",
    "loftq_config": {"loftq_bits": 4},
    "lora_dropout": float("nan"),
    "__class__": 1,
    "target_modules": [{"a": {"b": {"c": 1}}}],
    "task_type": "x" * 10_000,
}


def test_what_peft_writes_is_accepted() -> None:
    check_adapter_config(GOOD)


@pytest.mark.parametrize("key", ATTACKS)
def test_what_loads_something_is_refused_without_its_value(key: str) -> None:
    with pytest.raises(ValueError, match="adapter_config") as raised:
        check_adapter_config({**GOOD, key: ATTACKS[key]})
    assert str(ATTACKS[key]) == "1" or str(ATTACKS[key]) not in str(raised.value)


def test_more_keys_than_any_method_has_are_refused() -> None:
    with pytest.raises(ValueError, match="200 keys"):
        check_adapter_config({f"k{n}": 1 for n in range(200)})


def test_a_description_with_one_is_refused() -> None:
    with pytest.raises(ValidationError, match="auto_mapping"):
        SiteDescription.model_validate(
            {"backbone": {"name": "b", "fingerprint": "f"}, "adapter_config": {"auto_mapping": {"a": "b"}}}
        )


def configured(**values: Any) -> dict[str, Lie]:
    """The lie of a site whose adapter is configured like this."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        describe = dict(reply["facts"]["describe"])
        reply["facts"]["describe"] = {**describe, "adapter_config": {**describe["adapter_config"], **values}}

    return {"prepare": lie}


@pytest.mark.parametrize(
    "values",
    [{"auto_mapping": {"parent_library": "os"}}, {"base_model_name_or_path": "evil/model"}, {"r": 512}],
    ids=["code", "another model", "another rank"],
)
def test_the_first_sites_word_is_not_the_results(
    federation: Callable[..., Federation], values: dict[str, Any]
) -> None:
    honest = federation()
    assert honest.run().status == "completed"
    expected = [read_json(path) for path in honest.folder.rglob("adapter_config.json")]
    run = federation(controller={"min_responses": 2}, tamper=lying("site-1", configured(**values)))
    record = run.run()
    assert record.status == "completed", record.reason
    written = [read_json(path) for path in run.folder.rglob("adapter_config.json")]
    assert written
    assert all(config in expected for config in written)
