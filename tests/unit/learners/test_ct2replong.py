# SPDX-License-Identifier: Apache-2.0
"""CT2RepLong: what of a volume becomes a token, what of the visit before is read, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from fedtar_sites import change_rows, site, write_visits
from method_sites import SETTINGS, Make
from safetensors.torch import save_file

from medflare.core.plan import RoundPlan
from medflare.learners.ct2replong.learner import PAPER, build
from medflare.learners.ct2replong.settings import METHOD
from medflare.learners.visit_results import open_result
from medflare.models.generators.ct2replong import CT2RepLong
from medflare.models.generators.settings import VolumeSettings
from medflare.models.generators.volume_encoder import VolumeEncoder, fit_depth
from medflare.models.generators.writing import parameter_counts
from medflare.models.padding import pad


def test_the_parameters_at_the_papers_shape() -> None:
    words: Any = SimpleNamespace(size=4300, name="words", digest="")
    with torch.device("meta"):
        counts = parameter_counts(CT2RepLong(METHOD.resolve({"preset": "paper"}).model, words, "fp32", 0))
    assert sum(counts.values()) == PAPER["total"]


def test_a_token_is_a_block_of_slices_and_squares() -> None:
    shape = VolumeSettings(image_size=8, slices=4, patch=4, slice_patch=2, width=8, attention_heads=2)
    encoder = VolumeEncoder(shape)
    volume = torch.arange(4 * 8 * 8.0).reshape(1, 4, 8, 8)
    seen: list[torch.Tensor] = []
    encoder.embed.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    assert encoder(volume).shape == (1, encoder.tokens, 8) == (1, 8, 8)
    assert torch.equal(seen[0][0, 1, 2], volume[0, 2:4, 4:8, 0:4].flatten())  # second block, third square
    with pytest.raises(ValueError, match="slices is 5, expected a multiple of 2"):
        VolumeSettings(slices=5, slice_patch=2)


def test_short_volumes_stand_between_air_and_of_long_ones_the_middle_is_taken() -> None:
    pictures = torch.arange(1.0, 6)[None, :, None, None].expand(2, 5, 1, 1)
    present = torch.tensor([[True] * 5, [True, True, False, False, False]])
    fitted = fit_depth(pictures, present, 4)[:, :, 0, 0]
    assert fitted.tolist() == [[1, 2, 3, 4], [0, 1, 2, 0]]
    assert fit_depth(pictures, present, 2)[:, :, 0, 0].tolist() == [[2, 3], [1, 2]]


def test_the_visit_before_is_read_by_a_later_visit_alone(make_learner: Make) -> None:
    learner: Any = make_learner("ct2replong")
    later = next(row for row, before in enumerate(learner.former) if before is not None)
    first = learner.former.index(None)
    visits = learner.volumes([first, later])
    assert visits.later.tolist() == [False, True]
    assert not visits.former[0].any()
    assert torch.equal(visits.former[1], learner.volumes([later - 1]).current[0])
    before = learner.samples.visits[later].prior
    assert learner.model.tokenizer.decode(visits.words[1, 1:5]).strip() in before
    learner.model.first_visit.data.normal_()  # which no later visit looks at
    ids = torch.tensor([[5, 6, 7]] * 2)

    def states(**changes: torch.Tensor) -> torch.Tensor:
        given = learner.volumes([first, later])
        for name, value in changes.items():
            setattr(given, name, value)
        with torch.no_grad():
            hidden: torch.Tensor = learner.model.hidden(learner.model.encode_visits(given), ids)
        return hidden

    plain = states()
    for change in ({"former": 1 - visits.former}, {"words": visits.words.flip(1)}):
        moved = (states(**change) - plain).abs().amax((1, 2))
        assert moved[0] == 0 < moved[1]
    learner.model.first_visit.data.normal_()
    moved = (states() - plain).abs().amax((1, 2))
    assert moved[1] == 0 < moved[0]


def test_a_draft_follows_its_volume(make_learner: Make) -> None:
    """Image-swap control: with another visit's volume the report is unlikely, and the draft another."""
    model = SETTINGS["ct2replong"]["model"] | {"dropout": 0.0, "width": 32}
    rate = {"batch": 8, "lr": 3e-3, "weight_decay": 0.0, "schedule": "constant"}
    learner: Any = make_learner("ct2replong", model=model, former=False, max_report_tokens=8, optimiser=rate)
    wordings = {tuple(learner.tokens[row]): row for row in learner.train_rows}
    learner.train_rows = rows = list(wordings.values())[:4]
    learner.order.size = len(rows)
    learner.fit(RoundPlan(round=0, rounds=1, steps=120))
    ids, targets = pad([learner.tokens[row] for row in rows])
    losses = []
    with torch.no_grad(), learner.model.evaluating():
        for shift in range(4):
            visits = learner.volumes(rows)
            visits.current = visits.current.roll(shift, 0)
            losses.append(float(learner.model.visit_loss(visits, ids, targets)))
    assert losses[0] < min(losses[1:]) - 0.2
    assert len(set(learner.draft(rows))) > 1


def test_ct_volumes_of_nifti_files_are_trained_on(tmp_path: Any) -> None:
    folder = write_visits(tmp_path / "site-1", 0, patients=6, visits=2)
    generator = np.random.default_rng(0)
    voxels = generator.integers(-1000, 400, (20, 20, 6)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([1.0, 1.0, 3.0, 1.0])), folder / "ct.nii.gz")
    change_rows(folder, image="ct.nii.gz")
    config = site(folder, None, slices=6, window=(-400, 1200))
    shape = {"image_size": 16, "slices": 4, "patch": 8, "slice_patch": 2, "width": 8, "attention_heads": 2}
    learner = build(
        SETTINGS["ct2replong"] | {"model": SETTINGS["ct2replong"]["model"] | {"encoder": shape}}, config, 0
    )
    learner.load_shared(learner.initial_shared())
    volumes = learner.volumes([0])
    assert volumes.current.shape == (1, 4, 16, 16)
    assert 0 < float(volumes.current.mean()) < 1
    assert learner.fit(RoundPlan(round=0, rounds=1, steps=1)).metrics["loss"] > 0


def test_a_result_folder_is_tested_on_visits_as_the_learner_was(
    make_learner: Make, method_visits: Path, tmp_path: Path
) -> None:
    trained: Any = make_learner("ct2replong")
    result = tmp_path / "result"
    result.mkdir()
    save_file(
        {n: t.detach().contiguous() for n, t in trained.live().items()}, result / "ct2replong.safetensors"
    )
    (result / "ct2replong.json").write_text(json.dumps(trained.describe().export))
    opened: Any = open_result(result, site(method_visits / "site-2", None, "site-2"))
    rows = opened.split_rows("test")[:3]
    assert opened.draft(rows) == make_learner("ct2replong", "site-2").draft(rows)
    assert opened.samples.visits[rows[0]].study.patient_id != trained.samples.visits[0].study.patient_id
