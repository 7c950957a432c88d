# SPDX-License-Identifier: Apache-2.0
"""Cost of greedy reports: `python benchmarks/report_writing.py [--model smollm2]`.

Reports after the same images by transformers' `generate` and by `medflare.models.report_writing`, in turn in
one process, one thread, adapters beside all projections. Every report has exactly `--tokens` tokens, so what
is saved where some end earlier is not seen.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from medflare.core.model_folders import stored_model
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import ALL_PROJECTIONS, LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.embedded import decoder_folder
from medflare.models.encoders import EncoderSettings
from medflare.models.report_generator import DecodingSettings, ModelSettings, ReportGenerator

ENCODER = EncoderSettings(name="small", weights="none", image_size=64)
"""Its cost is no part of what is compared."""


def build(model: str | None, fused: bool) -> ReportGenerator:
    """Return a generator with the embedded decoder, or with a model that was added."""
    lora = LoraSettings(rank=16, lora_alpha=32, targets=ALL_PROJECTIONS)
    folder, precision = (stored_model(model), "bf16") if model else (decoder_folder(), "fp32")
    made = ReportGenerator(
        load_backbone(folder, precision), ModelSettings(encoder=ENCODER, lora=lora), (GENERIC,), seed=0
    )
    made.adapters.use((GENERIC,))
    if not fused:
        made.fused = None
    return made.eval()


def seconds(model: ReportGenerator, images: torch.Tensor, decoding: DecodingSettings) -> float:
    """Return the processor seconds of one report."""
    started = time.process_time()
    model.generate(images, decoding)
    return (time.process_time() - started) / len(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", help="a model that `medflare models add` knows; left out: the embedded one"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 32], help="reports at once")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    ours, theirs = build(given.model, True), build(given.model, False)
    most = given.tokens
    decoding = DecodingSettings(beams=1, max_new_tokens=most, min_new_tokens=most, repetition_penalty=1.0)
    images = torch.rand(max(given.batches), 1, 64, 64, generator=torch.Generator().manual_seed(0))
    for model in (ours, theirs):
        seconds(model, images[:2], decoding)
    print("| reports at once | generate, seconds of a report | ours | times as fast [least, most] |")
    print("|---|---:|---:|---:|")
    for batch in given.batches:
        pairs = [
            [seconds(model, images[:batch], decoding) for model in (theirs, ours)]
            for _ in range(given.repeats)
        ]
        before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = [one / other for one, other in pairs]
        middle = statistics.median(ratios)
        print(
            f"| {batch} | {before:.3f} | {after:.3f} | {middle:.2f} [{min(ratios):.2f}, {max(ratios):.2f}] |"
        )


if __name__ == "__main__":
    main()
