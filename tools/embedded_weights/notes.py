# SPDX-License-Identifier: Apache-2.0
"""Makes the embedded notes decoder: `python -m tools.embedded_weights.notes --ie <folder> ...`.

About half an hour on one core. Numbers may differ in the last digits between processors.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.models.backbone import autocast, resolve_precision
from tools.embedded_weights.cards import write_cards
from tools.embedded_weights.induction import start_copying
from tools.embedded_weights.notes_corpus import (
    CLOSE,
    CONTROL,
    LONGEST,
    OPENS,
    WORDING,
    Exercises,
    public_sentences,
    questions,
    synthetic_sentences,
)
from tools.embedded_weights.small_models import for_transformers, new_decoder, train_byte_level

HERE = Path(__file__).parents[2] / "custom" / "medflare" / "models" / "embedded"
VOCABULARY, POSITIONS, RATE, IGNORED = 4096, 1024, 2e-3, -100
ASKED = 0.3
"""Share of questions in the instruction tuning."""
HOSPITALS, NOTES = 300, 12  # the first eight hospitals are held out

Pair = tuple[list[int], list[int]]


def train_tokenizer(texts: list[str]) -> Any:
    """Return a byte-level BPE tokenizer; each mark is one token that takes the space before it along."""
    from tokenizers import AddedToken

    tokenizer = train_byte_level(texts, VOCABULARY - len(OPENS) - 1, CONTROL)
    tokenizer.add_tokens([AddedToken(name, lstrip=True, normalized=False) for name in OPENS])
    tokenizer.add_tokens([AddedToken(CLOSE, normalized=False)])
    return for_transformers(tokenizer, CONTROL, POSITIONS)


def copying_decoder(vocabulary: int) -> Any:
    """Return a decoder that begins with a copying circuit."""
    model = new_decoder(vocabulary, POSITIONS)
    start_copying(model)
    return model


def pretrain(
    steps: int, tuning: int, corpora: Path | None, note_file: Path | None, seed: int = 0, batch: int = 24
) -> Any:
    """Trains tokenizer and decoder, writes `notes_decoder/`, returns what the model card states.

    Args:
        tuning: further steps in which ASKED of the exercises are questions.
    """
    torch.manual_seed(seed)
    held, synthetic = _parted(synthetic_sentences(HOSPITALS, NOTES))
    texts = synthetic + public_sentences(corpora, note_file)
    tokenizer = train_tokenizer(texts)
    rows = [
        row for row in tokenizer(texts, add_special_tokens=False)["input_ids"] if 3 <= len(row) <= LONGEST
    ]
    exercises = Exercises(tokenizer, rows, np.random.default_rng(seed))
    model = copying_decoder(len(tokenizer))
    tokens = _train(model, exercises, steps, RATE, batch)
    exercises.asked, exercises.share_asked = _tokenised(tokenizer, questions(HOSPITALS, 2, skip=8)), ASKED
    tokens += _train(model, exercises, tuning, RATE / 2, batch)
    facts = {"steps": steps, "tuning": tuning, "tokens": tokens, "parameters": model.num_parameters()}
    facts |= {"texts": len(rows), "questions": len(exercises.asked)}
    facts |= _tests(model, Exercises(tokenizer, _rows(tokenizer, held), np.random.default_rng(1)))
    _write(model, tokenizer)
    return facts


def _train(model: Any, exercises: Exercises, steps: int, rate: float, batch: int) -> int:
    """AdamW with one cosine over `steps`; the tokens seen."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.05, betas=(0.9, 0.98))
    precision, tokens, stream = resolve_precision("auto", "cpu"), 0, _stream(exercises, batch)
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, step / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))
        ids, targets = next(stream)
        with autocast(precision, "cpu"):
            scores, wanted = _scores(model, ids, targets)
            loss = F.cross_entropy(scores, wanted)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        tokens += ids.numel()
        if step % 100 == 0:
            print(
                f"step {step} loss {loss.item():.3f} tokens {tokens} {_tests(model, exercises)}", flush=True
            )
    return tokens


def _tokenised(tokenizer: Any, pairs: list[tuple[str, str]]) -> list[Pair]:
    """Questions after the begin mark, answers with the end mark; long ones left out."""
    heads = tokenizer([prompt for prompt, _ in pairs], add_special_tokens=False)["input_ids"]
    tails = tokenizer([answer for _, answer in pairs], add_special_tokens=False)["input_ids"]
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    whole = [([begin, *head], [*tail, end]) for head, tail in zip(heads, tails, strict=True)]
    return [pair for pair in whole if len(pair[0]) <= LONGEST]


def _parted(sentences: list[str]) -> tuple[list[str], list[str]]:
    cut = len(sentences) * 8 // HOSPITALS
    return sentences[:cut], sentences[cut:]


def _rows(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    found = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [row for row in found if 3 <= len(row) <= LONGEST]


def _stream(exercises: Exercises, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of exercises of similar length."""
    while True:
        drawn = sorted((exercises.draw() for _ in range(32 * batch)), key=lambda pair: sum(map(len, pair)))
        groups = [drawn[i : i + batch] for i in range(0, len(drawn), batch)]
        for place in exercises.rng.permutation(len(groups)):
            yield _padded(groups[place])


def _padded(pairs: list[Pair]) -> tuple[Tensor, Tensor]:
    longest = max(len(head) + len(tail) for head, tail in pairs)
    ids = torch.zeros(len(pairs), longest, dtype=torch.long)
    targets = torch.full_like(ids, IGNORED)
    for i, (head, tail) in enumerate(pairs):
        ids[i, : len(head) + len(tail)] = torch.tensor(head + tail)
        targets[i, len(head) : len(head) + len(tail)] = torch.tensor(tail)
    return ids, targets


def _scores(model: Any, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits at target positions, and the targets there."""
    hidden = model.get_decoder()(input_ids=ids[:, :-1]).last_hidden_state
    kept = targets[:, 1:] != IGNORED
    return model.lm_head(hidden[kept]).float(), targets[:, 1:][kept]


@torch.no_grad()
def _tests(model: Any, exercises: Exercises, count: int = 64) -> dict[str, float]:
    """Share of tokens predicted in copies and markings, perplexity of plain text."""
    fixed = Exercises(exercises.tokenizer, exercises.texts, np.random.default_rng(1))
    found = {}
    for name, draw in (("copy", fixed._copy), ("mark", fixed._marking)):
        scores, wanted = _scores(model, *_padded([draw(fixed._text()) for _ in range(count)]))
        found[f"{name}_accuracy"] = round(float((scores.argmax(-1) == wanted).float().mean()), 4)
    plain = [([fixed.begin], [*fixed._text(), fixed.end]) for _ in range(count)]
    found["perplexity"] = round(math.exp(float(F.cross_entropy(*_scores(model, *_padded(plain))))), 2)
    return found


def _write(model: Any, tokenizer: Any) -> None:
    folder = HERE / "notes_decoder"
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "medflare_prompt.json").write_text(json.dumps(WORDING, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ie", type=Path, help="folder with maccrobat, chia and phee")
    parser.add_argument("--notes", type=Path, help="JSONL of CC0 notes with a 'text' key (MTSamples)")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--tuning", type=int, default=1200, help="further steps with questions among them")
    given = parser.parse_args()
    facts = pretrain(given.steps, given.tuning, given.ie, given.notes)
    record = HERE / "facts.json"
    whole = (json.loads(record.read_text()) if record.is_file() else {}) | {"notes_decoder": facts}
    record.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    write_cards(HERE, whole)
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
