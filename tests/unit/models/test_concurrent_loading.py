# SPDX-License-Identifier: Apache-2.0
"""Several threads of one process load models at the same time, as thread workers do."""

from concurrent.futures import ThreadPoolExecutor

from medflare.models.backbone import load_backbone


def test_backbones_that_load_at_the_same_time_keep_their_tied_weights() -> None:
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load_backbone(None, "fp32", "cpu", "notes_decoder"), range(8)))
    for backbone in [*loaded, load_backbone(None, "fp32", "cpu", "notes_decoder")]:
        table = backbone.model.get_input_embeddings().weight
        assert backbone.model.get_output_embeddings().weight is table
        assert not table.is_meta
