# SPDX-License-Identifier: Apache-2.0
"""What the answers of a test cost: `python benchmarks/generation.py --notes FOLDER... --model smollm2`.

Every way answers the same questions about the same annotated notes (BRAT) with the same adapter, one after
the other in one process and one thread, so that a busy machine hits all alike; seconds are the processor's.
The adapter comes from `--adapter`, or is trained here for `--steps` steps on notes that are not tested. With
`--full-steps` it then learns the full wording for so many steps, and `generate` answers the same questions in
that wording: the way tests went before the wording was made short.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from full_wording import use_full_wording
from medflare.core.data_order import batches
from medflare.core.model_folders import stored_model
from medflare.core.plan import RoundPlan
from medflare.data.settings.cohort import CohortConfig, SplitConfig
from medflare.data.settings.site import BackboneConfig, SiteConfig
from medflare.learners.extraction.learner import ExtractionLearner, build
from medflare.learners.text_task.shared_adapter import ADAPTER_PREFIX
from medflare.models.adapters.base import GENERIC
from medflare.models.attention import attention_of_few
from medflare.models.packed_batch import pack
from medflare.models.padding import batches_by_length
from medflare.models.text_model import TextModel, Written
from medflare.tasks.extraction.examples import Example
from medflare.tasks.extraction.extractor import Extractor
from medflare.tasks.extraction.markup import ParsedOutput
from medflare.tasks.extraction.predictor import training_examples
from medflare.tasks.extraction.prompts import Decoding

GENERATE, FREE, COPY = "transformers' generate", "decoding: free", "decoding: copy"
FULL = "full wording, transformers' generate"
SHARED = "adapter_model.safetensors"


def with_generate(model: TextModel) -> Callable[..., list[Written]]:
    """Return `TextModel.answer` as before: `generate` on padded batches, each until its last row is done."""

    def answer(prompts: Sequence[str], budgets: Sequence[int], batch: int, guides: object) -> list[Written]:
        rows, answers = model.prompt_ids(prompts), [Written("", False)] * len(prompts)
        with torch.no_grad(), model.evaluating():
            for part in batches_by_length(rows, batch):
                most = max(budgets[i] for i in part)
                for i, new in zip(part, model.generate_ids([rows[i] for i in part], most), strict=True):
                    kept = new[: budgets[i]]
                    ended = model.end in kept
                    kept = kept[: kept.index(model.end)] if ended else kept
                    answers[i] = Written(model.decoded(kept), ended)
        return answers

    return answer


def site(given: argparse.Namespace) -> SiteConfig:
    """Return the notes, those with the first hash values to train, and the model."""
    backbone = BackboneConfig(folder=stored_model(given.model), precision=given.precision)
    cohorts = tuple(cohort(folder, given.tasks) for folder in given.notes)
    return SiteConfig(name="site-1", cohort=cohorts, backbone=backbone, threads=1)


def cohort(folder: Path, tasks: str) -> CohortConfig:
    """Return how notes are read; a folder with notes.jsonl, as a comparison writes it, says which test."""
    if (folder / "notes.jsonl").is_file():
        return CohortConfig.model_validate(
            {"format": "notes_jsonl", "root": str(folder), "tasks": tasks.split(",")}
        )
    shares = SplitConfig(train=0.8, val=0.0, test=0.2)
    return CohortConfig(format="brat", root=folder, label_map="mtsamples", split=shares)


def prepare_adapter(learner: ExtractionLearner, given: argparse.Namespace) -> None:
    """Load the adapter, of a run's `result/adapter` too, or train it and write it."""
    file = given.adapter / SHARED
    adapters = learner.model.adapters
    if file.is_file():
        from safetensors.torch import load_file

        adapters.load(GENERIC, {n.removeprefix(ADAPTER_PREFIX): t for n, t in load_file(file).items()})
    if given.steps:
        train(learner, given.steps, given.seed)
        given.adapter.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in adapters.state(GENERIC).items()}, file)
    learner.use()


def train(learner: ExtractionLearner, steps: int, seed: int) -> None:
    """Train on so many batches of questions that are drawn from all."""
    size, rows = learner.settings.optimiser.batch, learner.train_rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    picked = [rows[i] for i in chosen[: steps * size]]
    cut = batches(list(range(len(picked))), [len(row.ids) for row in picked], size, seed)
    part = learner.settings.optimiser.cosine_part(RoundPlan(round=0, rounds=1))
    print(learner.train([[picked[i] for i in batch] for batch in cut], seed, part), flush=True)


def answer_with(learner: ExtractionLearner, way: str, batch: int) -> Extractor:
    """Return the learner's extractor, and let its model answer in a way."""
    chosen = learner.settings
    decoding: Decoding = "copy" if way == COPY else "free"
    vars(learner.model).pop("answer", None)
    if way in (GENERATE, FULL):
        setattr(learner.model, "answer", with_generate(learner.model))  # noqa: B010 - a method
    return Extractor(
        learner.model,
        learner.predictor.wording,
        chosen.sentences,
        chosen.max_tokens,
        batch,
        decoding,
    )


def measure(
    extractor: Extractor, examples: Sequence[Example], count: Callable[[], tuple[int, int]]
) -> dict[str, Any]:
    """Return seconds, scores and how much the model read for one way."""
    began, wall, before = time.process_time(), time.monotonic(), count()
    outputs = extractor.predict(examples)
    seconds, after = time.process_time() - began, count()
    return {
        "cpu_seconds": round(seconds, 2),
        "wall_seconds": round(time.monotonic() - wall, 2),
        "passes": after[0] - before[0],
        "tokens_read": after[1] - before[1],
        "unreadable": sum(output.failed for output in outputs),
        **{task: f1(examples, outputs, task) for task in ("ner", "re")},
    }


def f1(examples: Sequence[Example], outputs: Sequence[ParsedOutput], task: str) -> float:
    """Return the strict F1 of marks over all questions of a task."""
    pairs = [(set(e.answer), set(o.marks)) for e, o in zip(examples, outputs, strict=True) if e.task == task]
    right = sum(len(gold & marks) for gold, marks in pairs)
    total = sum(len(gold) + len(marks) for gold, marks in pairs)
    return round(100 * 2 * right / total, 1) if total else float("nan")


def counted(model: TextModel) -> Callable[[], tuple[int, int]]:
    """Count passes through the decoder, and the tokens that are computed in them."""
    totals, read = [0, 0], model.read

    def record(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        totals[0] += 1
        totals[1] += kwargs["input_ids"].numel()

    def reading(ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        before = tuple(totals)
        result = read(ids, mask, positions, cache)
        if tuple(totals) == before:  # without transformers, and without padding
            totals[0] += 1
            totals[1] += int(mask[:, -ids.shape[1] :].sum())
        return result

    rows_read = model.read_rows

    def reading_rows(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Any]:
        before = tuple(totals)
        result = rows_read(rows)
        if tuple(totals) == before:  # along what they share
            totals[0] += 1
            totals[1] += pack([[*row, 0] for row in rows], [len(row) for row in rows], "cpu").ids.numel()
        return result

    setattr(model, "read_rows", reading_rows)  # noqa: B010 - a method
    model.backbone.model.get_decoder().register_forward_pre_hook(record, with_kwargs=True)
    setattr(model, "read", reading)  # noqa: B010 - a method
    return lambda: (totals[0], totals[1])


def attention_milliseconds() -> str:
    """Return milliseconds of attention over 400 tokens for few new ones of 16 rows: 9 heads, 3 of keys."""
    shown = ["| new tokens | transformers and PyTorch, ms | keys where they are, ms |", "|---:|---:|---:|"]
    module: Any = SimpleNamespace(num_key_value_groups=3, is_causal=True)
    for count in (1, 8):
        query = torch.randn(16, 9, count, 64).to(torch.bfloat16)
        key, value = (torch.randn(16, 3, 400, 64).to(torch.bfloat16) for _ in range(2))
        mask = torch.ones(16, 1, count, 400, dtype=torch.bool).tril(400 - count)
        ways: tuple[Callable[[], Any], ...] = (
            partial(sdpa_attention_forward, module, query, key, value, mask),
            partial(attention_of_few, query, key, value, mask),
        )
        with torch.no_grad():
            shown.append(f"| {count} | {' | '.join(f'{1000 * least_seconds(way):.1f}' for way in ways)} |")
    return "\n".join(shown)


def least_seconds(work: Callable[[], Any], repeats: int = 20) -> float:
    """Return the processor seconds of the fastest repetition."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--notes", type=Path, nargs="+", required=True)
    parser.add_argument("--tasks", default="ner,re", help="of a folder with notes.jsonl")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--adapter", type=Path, default=Path("studies/generation"))
    parser.add_argument("--steps", type=int, default=0, help="of training, before; they go on where it is")
    parser.add_argument(
        "--full-steps", type=int, default=0, help="of training with the full wording, at the end"
    )
    parser.add_argument("--questions", type=int, default=64, help="0: train alone; -1: all of the test")
    parser.add_argument("--documents", type=int, help="so many of the test notes; left out: all")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--ways", default=",".join((GENERATE, FREE, COPY)))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(attention_milliseconds(), flush=True)
    learner = build({"preset": "instruct"}, site(given), given.seed)
    prepare_adapter(learner, given)
    if not given.questions:
        return
    examples, _ = training_examples(learner.predictor, learner.records("test")[: given.documents])
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
    examples = [examples[i] for i in order[: None if given.questions < 0 else given.questions]]
    count = counted(learner.model)

    def show(way: str) -> None:
        measured = measure(answer_with(learner, way, given.batch), examples, count)
        print(json.dumps({"way": way, **measured}, ensure_ascii=False), flush=True)

    for way in given.ways.split(","):
        show(way)
    if given.full_steps:
        use_full_wording(learner)
        train(learner, given.full_steps, given.seed)
        learner.use()
        show(FULL)


if __name__ == "__main__":
    main()
