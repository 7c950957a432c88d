# SPDX-License-Identifier: Apache-2.0
"""What cannot work together is refused before anything starts, with the reason and what to use instead."""

from __future__ import annotations

import re
from typing import Any

import pytest

from medflare.aggregation import RULES, make_rule
from medflare.aggregation.lora import A, B, stems
from medflare.core.errors import ConfigError
from medflare.learners.registry import METHODS, get_method
from medflare.protections.base import ServerProtection
from medflare.protections.encrypted_server import EncryptedServer
from medflare.protections.masked_server import MaskedServer
from medflare.protections.registry import PROTECTIONS
from medflare.recipes.combinations import problems
from medflare.recipes.job import Job
from medflare.recipes.job_check import check_job
from medflare.wire.compression import CODECS

MEDLORA, ENCODER = "fed_medlora", "token_classification"
CLIENT = {"mode": "client"}
CROSS = {"loss_source": "cross"}

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (dict(rule="krum", protection="masking"), "must see each update", "rule 'weighted_mean'"),
    (dict(rule="median", protection="he"), "homomorphic encryption", "rule 'weighted_mean'"),
    (dict(rule="l_fedavg", method="fedvit_gpt2", protection="masking"), "must see", "rule 'influence'"),
    (dict(rule="influence", protection="masking"), "must see", '{"mode": "client"}'),
    (dict(rule="lora_product_svd", protection="he"), "must see", "rule 'freeze_a'"),
    (dict(rule="lora_stack", settings={"sharing": "stack"}, protection="masking"), "must see", "'freeze_a'"),
    (
        dict(rule="fedadam", protection="he"),
        "stays encrypted at the server",
        "rule 'weighted_mean', or masking",
    ),
    (dict(rule="scaffold", protection="he"), "stays encrypted at the server", "masking"),
    (dict(rule="drfa", protection="he"), "stays encrypted at the server", "masking"),
    (dict(rule="drfa", protection="masking"), "a state that only the server knows", "snapshot to 'end'"),
    (dict(rule="scaffold", settings={"sharing": "stack"}), "expect the merged", "rule 'lora_stack'"),
    (dict(rule="drfa", settings={"sharing": "stack"}), "expect the merged", "rule 'lora_stack'"),
    (dict(rule="weighted_mean", uplink="int8", protection="masking"), "mean nothing once", "'bfloat16'"),
    (dict(rule="weighted_mean", uplink="int4", protection="he"), "mean nothing once", "'float32'"),
    (dict(rule="lora_stack"), "both LoRA factors travel", "settings.sharing to 'stack'"),
    (dict(rule="lora_stack", method="fedmrg"), "both LoRA factors travel", "rule 'weighted_mean'"),
    (dict(rule="weighted_mean", settings={"sharing": "stack"}), "expect the merged", "rule 'lora_stack'"),
    (dict(rule="krum", settings={"variant": "stack"}), "expect the merged", "rule 'lora_stack'"),
    (dict(rule="freeze_a"), "both LoRA factors travel", "settings.sharing to 'freeze_a'"),
    (dict(rule="freeze_a", method=ENCODER), "no LoRA factors travel", "rule 'weighted_mean'"),
    (dict(rule="lora_product_svd", settings={"sharing": "fedsa"}), "only the LoRA factors A", "'factors'"),
    (dict(rule="lora_product_svd", settings={"sharing": "freeze_a"}), "only the LoRA factors B", "'factors'"),
    (dict(rule="krum", settings={"variant": "fedsa_lora"}), "a B of its own", "rule 'weighted_mean'"),
    (dict(rule="influence", settings={"sharing": "fedsa"}), "nobody else can score", '{"mode": "client"}'),
    (dict(rule="influence", method="fedmrg"), "does not compute", "rule 'weighted_mean'"),
    (
        dict(rule="median", method="fedmrg", settings={"bank": "raw"}),
        "added from every site",
        "'local_queue'",
    ),
    (dict(rule="l_fedavg"), "do not hold", "rule 'weighted_mean'"),
    (dict(rule="l_fedavg", method="fedmrg", rule_settings=CROSS), "does not compute", "rule 'weighted_mean'"),
    (dict(rule="l_fedavg", rule_settings=CROSS, protection="he"), "must see", "rule 'influence'"),
    (
        dict(rule="influence", method="fedvit_gpt2", rule_settings=CLIENT),
        "does not compute",
        "'weighted_mean'",
    ),
    (dict(rule="fedavg", method=ENCODER, rule_settings={"weighting": "tokens"}), "metric 'tokens'", "words"),
    (dict(rule="krum", sites=4), "needs 5 sites and has 4", '{"allow_unsafe": true}'),
    (dict(rule="bulyan", rule_settings={"f": 2}, sites=7), "needs 11 sites and has 7", '{"f": 1}'),
    (dict(rule="trimmed_mean", sites=2), "needs 3 sites", "rule 'median'"),
]

ALLOWED: list[dict[str, Any]] = [
    dict(rule="weighted_mean", protection="masking"),
    dict(rule="weighted_mean", protection="he", uplink="float32"),
    dict(rule="weighted_mean", uplink="int4"),
    dict(rule="fedadam", protection="masking"),
    dict(rule="influence", rule_settings=CLIENT, protection="masking"),
    dict(rule="influence", rule_settings=CLIENT, protection="he"),
    dict(rule="influence", rule_settings=CLIENT, settings={"sharing": "fedsa"}),
    dict(rule="freeze_a", settings={"sharing": "freeze_a"}, protection="he"),
    dict(rule="lora_stack", settings={"sharing": "stack"}),
    dict(rule="lora_product_svd"),
    dict(rule="lora_product_svd", method="fedmrg"),
    dict(rule="l_fedavg", method="fedvit_gpt2"),
    dict(rule="l_fedavg", rule_settings={"loss_metric": "loss"}),
    dict(rule="l_fedavg", rule_settings=CROSS),
    dict(rule="l_fedavg", method="fedvit_gpt2", rule_settings={"loss_source": "server"}),
    dict(rule="influence", method="fedvit_gpt2"),
    dict(rule="median", method="fedmrg", settings={"bank": "local_queue"}),
    dict(rule="fedprox", protection="he"),
    dict(rule="scaffold", settings={"sharing": "fedsa"}, protection="masking"),
    dict(rule="drfa", method="fedmrg", rule_settings={"snapshot": "end"}, protection="masking"),
    dict(rule="krum", sites=5),
    dict(rule="krum", sites=4, rule_settings={"allow_unsafe": True}),
    dict(rule="fedavg", rule_settings={"weighting": "tokens"}),
]


def found(rule: str, **given: Any) -> list[str]:
    parts = {"method": MEDLORA, "settings": {}, "uplink": "bfloat16", **given}
    return problems(rule, **parts)


@pytest.mark.parametrize(("given", "reason", "instead"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_with_the_reason_and_what_to_use(given: dict[str, Any], reason: str, instead: str) -> None:
    (text,) = found(**given)
    before, after = re.split(r"Use |Set ", text, maxsplit=1) if instead != "words" else (text, text)
    assert reason in before
    assert instead in after


@pytest.mark.parametrize("given", ALLOWED, ids=str)
def test_allowed(given: dict[str, Any]) -> None:
    assert found(**given) == []


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("protection", [name for name in PROTECTIONS if name != "none"])
def test_a_rule_under_protection_needs_no_more_than_a_sum(rule: str, protection: Any) -> None:
    makes = {"lora_stack": {"sharing": "stack"}, "freeze_a": {"sharing": "freeze_a"}}
    given = {"rule": rule, "settings": makes.get(rule, {}), "protection": protection}
    if rule == "drfa":  # what it probes otherwise is a state that no site can check
        given["rule_settings"] = {"snapshot": "end"}
    if make_rule(rule, {}).facts.needs == "individual":
        assert any("must see each update" in text for text in found(**given))
    elif protection == "masking":
        assert found(**given) == []


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_settings_said_to_need_a_sum_alone_do(rule: str) -> None:
    aggregation_rule = make_rule(rule, {})
    if aggregation_rule.facts.sum_with:
        assert (
            aggregation_rule.facts.needs,
            make_rule(rule, aggregation_rule.facts.sum_with).facts.needs,
        ) == ("individual", "sum")
    assert aggregation_rule.facts.needs == "sum" or aggregation_rule.facts.instead


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_says_what_it_is_and_its_variants_can_be_had(method: str) -> None:
    entry = get_method(method)
    facts, variants = entry.facts, entry.variants
    assert facts.summary.endswith(".")
    assert "paper" in facts.source
    assert facts.metrics
    assert next(iter(variants)) in (method, entry.resolve({}).variant)
    for variant in variants:
        assert entry.resolve({"variant": variant}).lora_sharing


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("uplink", sorted(CODECS))
def test_fedavg_in_the_clear_goes_with_every_method(method: str, uplink: str) -> None:
    assert found("fedavg", method=method, uplink=uplink) == []


@pytest.mark.parametrize(
    ("part", "value"), [("uplink", "int2"), ("protection", "tee"), ("method", "fedx"), ("rule", "sum")]
)
def test_an_unknown_part_is_an_error_that_names_it(part: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"'{value}'"):
        found(**{"rule": "fedavg", part: value})


def test_a_job_that_cannot_work_is_refused_by_its_check() -> None:
    job = Job(title="t", method=MEDLORA, aggregation={"rule": "lora_stack"})
    with pytest.raises(ConfigError, match=r"t: rule 'lora_stack' works on LoRA factors shared as 'stack'"):
        check_job(job)
    few = Job(title="t", method=MEDLORA, n_clients=3, aggregation={"rule": "krum"})
    with pytest.raises(ConfigError, match="needs 5 sites and has 3"):
        check_job(few)
    check_job(Job(title="t", method=MEDLORA, n_clients=5, aggregation={"rule": "krum"}))


@pytest.mark.parametrize(("mode", "names"), [("fedsa", [A]), ("freeze_a", [B])])
def test_what_the_check_refuses_the_rule_would_refuse_in_round_1(mode: str, names: list[str]) -> None:
    assert found("lora_product_svd", settings={"sharing": mode})
    with pytest.raises(ConfigError, match="without their partner"):
        stems(f"adapter.q{end}" for end in names)


def test_what_a_server_can_read_is_the_same_in_the_table_and_at_its_side() -> None:
    servers = {"none": ServerProtection, "masking": MaskedServer, "he": EncryptedServer}
    stated = {name: protection.server_reads for name, protection in PROTECTIONS.items()}
    assert {name: server.server_reads for name, server in servers.items()} == stated
