# SPDX-License-Identifier: Apache-2.0
"""GREEN: a language model lists the errors and the matched findings of a report, and a formula counts them.

Ostmeier et al., GREEN: Generative Radiology Report Evaluation and Error Notation, Findings of EMNLP 2024. The
model is a local folder (StanfordAIMI/GREEN-radllama2-7b or -phi2) with its prompt; nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from medflare.core.errors import ConfigError
from medflare.core.model_folders import check_folder
from medflare.models.backbone import LOADING, load_tokenizer

PROMPT_FILE = "green_prompt.txt"
"""In the model's folder: the prompt that it was trained to answer, with {reference} and {candidate}. It is
part of the released code of GREEN, from which it has to be copied."""
SIGNIFICANT = re.compile(r"\[Clinically Significant Errors\]:\s*(.*?)(?:\n\s*\n|\n\s*\[|\Z)", re.DOTALL)
MATCHED = re.compile(r"\[Matched Findings\]:\s*(\d+)")
ERROR = re.compile(r"\([a-f]\)[^:\n]*:\s*(\d+)")


class GreenJudge:
    """The model of a local folder."""

    def __init__(self, folder: Path, most_tokens: int = 1024) -> None:
        from transformers import AutoModelForCausalLM

        check_folder(folder, "scorers.green")
        self.tokenizer = load_tokenizer(folder)
        with LOADING:
            self.model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        self.most_tokens = most_tokens
        self.prompt = (folder / PROMPT_FILE).read_text(encoding="utf-8")
        if missing := [part for part in ("{reference}", "{candidate}") if part not in self.prompt]:
            raise ConfigError(f"{folder / PROMPT_FILE}: lacks {' and '.join(missing)}, where reports stand.")

    def scores(self, references: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """Return GREEN of each pair; an empty draft scores 0 without being judged."""
        pairs = zip(references, hypotheses, strict=True)
        return [green_score(self.judge(one, other)) if other.strip() else 0.0 for one, other in pairs]

    @torch.no_grad()
    def judge(self, reference: str, candidate: str) -> str:
        """Return what the model says about one draft."""
        text = self.prompt.replace("{reference}", reference).replace("{candidate}", candidate)
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        longest = int(self.model.config.to_dict().get("max_position_embeddings", 4096))
        room = min(self.most_tokens, longest // 2)
        ids = ids[:, -(longest - room) :]
        end = self.tokenizer.eos_token_id
        out = self.model.generate(ids, max_new_tokens=room, do_sample=False, pad_token_id=end)
        return str(self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def green_score(analysis: str) -> float:
    """Return matched / (matched + significant errors) of an analysis; 0 where it names no matched finding."""
    found = MATCHED.search(analysis)
    matched = int(found[1]) if found else 0
    section = SIGNIFICANT.search(analysis)
    errors = sum(int(count) for count in ERROR.findall(section[1])) if section else 0
    return matched / (matched + errors) if matched else 0.0
