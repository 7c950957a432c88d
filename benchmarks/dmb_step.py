# SPDX-License-Identifier: Apache-2.0
"""Cost of a mini-batch of FedMRG against one of plain LoRA: `python benchmarks/dmb_step.py`.

All variants run in one process on the same batches, interleaved, one thread, with the job's settings; the
table gives processor seconds and ratios to plain LoRA of the same repetition, so that a busy machine hits all
alike. "written by hand" is plain LoRA's step in a dozen lines of PyTorch on the same model and images.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from medflare.data.images import augment
from medflare.data.settings.site import SiteConfig
from medflare.learners.fedmrg.learner import FedMRGLearner, build
from medflare.models.adapters.base import GENERIC
from medflare.recipes.job_reader import read_job
from medflare.synthetic import DEMO_HOSPITALS, write_hospital

PLAIN, BY_HAND = "plain LoRA (Fed-LoRA)", "plain LoRA, written by hand"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {"variant": "fed_lora"},
    "one adapter with HCP": {"variant": "without_specialised"},
    "FedMRG": {},
    "FedMRG, teacher of step 2 afresh": {"reuse_teacher": False},
    "FedMRG, encoder updated in step 1 only": {"encoder_update": "first"},
    "FedMRG, the same and one forward pass of A_s": {"encoder_update": "first", "share_forward": True},
    "FedMRG, encoder in step 1 only, head in both": {"encoder_update": "encoder_once"},
    "FedMRG without distillation": {"distil_to_generic": False, "distil_to_specialised": False},
}


def by_hand(learner: FedMRGLearner, optimiser: torch.optim.AdamW, rows: list[int], seed: int) -> float:
    """Take plain LoRA's step on some images and return the loss."""
    model, settings = learner.model, learner.settings
    decoder = model.backbone.model
    stored = learner.samples.images(rows)
    images = augment(
        stored, settings.model.encoder.image_size, settings.rotation, torch.Generator().manual_seed(seed)
    )
    reports = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(learner.tokens[row]) for row in rows], batch_first=True, padding_value=-100
    )
    table = decoder.get_input_embeddings()
    with torch.autocast("cpu", torch.bfloat16, enabled=model.backbone.precision == "bf16"):
        visual = model.projection(model.encoder(images)[0])
        words = {name: table(ids).expand(len(rows), -1, -1) for name, ids in model._segments.items()}
        prefix = [words["prefix"], visual.to(table.weight.dtype), words["suffix"], words["instruction"]]
        inputs = torch.cat([*prefix, table(reports.clamp(min=0)[:, :-1])], 1)
        hidden = decoder.get_decoder()(inputs_embeds=inputs, use_cache=False).last_hidden_state
        logits = decoder.get_output_embeddings()(hidden[:, -reports.shape[1] :])
    loss = F.cross_entropy(logits.float().flatten(0, 1), reports.flatten())
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_value_(parameters, settings.clip_value)
    optimiser.step()
    return loss.item()


def learners_of(settings: dict[str, Any]) -> dict[str, FedMRGLearner]:
    """Return a learner of each variant, and one for the step by hand, on the same synthetic hospital."""
    with tempfile.TemporaryDirectory() as folder:
        write_hospital(DEMO_HOSPITALS[0], Path(folder), 120)
        site = SiteConfig.model_validate(
            {"name": "site-1", "cohort": {"format": "manifest", "root": folder}, "device": "cpu"}
        )
        changes = {**VARIANTS, BY_HAND: VARIANTS[PLAIN]}
        learners = {name: build(settings | change, site, 0) for name, change in changes.items()}
    for learner in learners.values():
        learner.load_shared(learner.initial_shared())
        learner.model.train()
    learners[BY_HAND].model.adapters.use((GENERIC,), train=(GENERIC,))
    return learners


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    settings = read_job(Path(__file__).parents[1] / "jobs" / "fedmrg").settings | {"batch": given.batch}
    learners = learners_of(settings)
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {name: [] for name in learners}
    losses: dict[str, float] = {}
    for repeat in range(given.repeats + 1):
        for name, learner in learners.items():
            rows = learner.train_rows[: given.batch]
            started = time.process_time()
            if name == BY_HAND:
                losses[name] = by_hand(learner, learner.training.shared_optimiser, rows, repeat)
            else:
                generator = torch.Generator().manual_seed(repeat)
                losses[name] = learner.training.train_batch(learner._load(rows, generator), generator)["loss"]
            if repeat:
                times[name].append(time.process_time() - started)
    print_table(times, given.batch, learners["FedMRG"].model.backbone.precision)
    print(f"\nloss of the last mini-batch: by hand {losses[BY_HAND]:.6f}, ours {losses[PLAIN]:.6f}")


def print_table(times: dict[str, list[float]], batch: int, precision: str) -> None:
    """Print medians, and ratios to plain LoRA of the same repetition."""
    base = times[PLAIN]
    print(f"batch {batch}, {len(base)} repeats, backbone {precision}\n")
    print(
        "| mini-batch of | processor ms, median | ratio to plain LoRA, median [min, max] |\n|---|---:|---:|"
    )
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, base, strict=True)]
        shown = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"| {name} | {1000 * statistics.median(found):.0f} | {shown} |")


if __name__ == "__main__":
    main()
