# SPDX-License-Identifier: Apache-2.0
"""Whole runs in one process: what a run leaves, and what faults cost."""


def test_a_run_completes_and_leaves_record_state_and_adapters(federation) -> None:
    run = federation()
    record = run.run()
    assert record.status == "completed", record.reason
    assert [entry.accepted.keys() for entry in record.rounds] == [{"site-1", "site-2", "site-3"}] * 2
    assert (run.folder / "result/adapter/adapter_model.safetensors").exists()
    assert (run.folder / "result/best/adapter_model.safetensors").exists()
