# SPDX-License-Identifier: Apache-2.0
"""Model cards of the embedded weights, written from what the build measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DECODER = """---
license: apache-2.0
library_name: transformers
tags: [medflare, chest-x-ray, synthetic]
---
# medflare embedded decoder

A Llama-style decoder of {parameters:,} parameters (4 layers, width 192) for demonstrations, tests and studies on
medflare's synthetic hospitals. **Not for clinical use**, and no substitute for a real language model: it has seen
little but synthetic chest X-ray reports.

* Training text: synthetic reports of `medflare.synthetic.pretraining_hospitals` (seeds, prevalences and
  style mixtures that no experiment uses), and as every twentieth batch, of a third the size, pieces of
  MTSamples (CC0).
* Format: `<s><ctx> findings <dx> 14 codes <rep> report </s>`, findings and codes each left out at random. Image
  tokens later stand where the findings stood, diagnosis tokens where the codes stood. A code is one position that
  carries the sum of two embeddings: what is said and of which condition.
* {steps} steps, {target_tokens:,} target tokens. Perplexity on held-out hospitals: {perplexity_none} with an empty
  context, {perplexity_findings} with findings, {perplexity_codes} with codes, {perplexity_both} with both.
* Made by `python -m tools.embedded_weights.reports --notes <mtsamples_raw.jsonl>`.
"""

ENCODER = """---
license: apache-2.0
tags: [medflare, chest-x-ray, synthetic]
---
# medflare embedded encoder

A residual network with group norm (`medflare.models.encoders.SmallResNet`) for one grey channel, pretrained to name
findings and sides on {images:,} synthetic radiographs of hospitals that no experiment uses; it stands in for the
ImageNet weights of the papers. **Not for clinical use.**

* {steps} steps; macro AUC over 13 conditions on {held_out} held-out images: {macro_auc}.
* AUC by condition: {each}.
* Made by `python -m tools.embedded_weights.reports`.
"""


NOTES = """---
license: apache-2.0
library_name: transformers
tags: [medflare, clinical-notes, information-extraction, synthetic]
---
# medflare embedded notes decoder

A Llama-style decoder of {parameters:,} parameters (4 layers, width 192) for demonstrations, tests and studies of
information extraction. **Not for clinical use**, and no substitute for a real language model.

* Training text: {texts:,} sentences of synthetic notes from `pretraining_note_hospitals` (which know two thirds of
  the lexicon and never write in the unseen hospital's style) and of public sets without their annotation:
  MTSamples (CC0), MACCROBAT and Chia (CC BY 4.0), PHEE (MIT), training parts only. MTSamples notes that the
  study of real corpora tests on may be among the text, as they are in any large language model's.
* It started with a copying circuit (`induction.py`) and practised four exercises: writing on, copying, copying
  without marks, and setting marks of random types where the prompt says. Then a short instruction tuning among
  these: {questions:,} of Fed-MedLoRA's questions about notes of the pretraining hospitals, with their answers.
* {steps} and {tuning} steps, {tokens:,} tokens. On held-out synthetic hospitals: {copy_accuracy:.1%} of tokens right in copies,
  {mark_accuracy:.1%} in markings; perplexity {perplexity}.
* Format: `<s><ner>` or `<re>`, the words of the text joined by spaces, `<out>`, the words with marks, `</s>`. Each mark
  (`<span class="problem">` ...) is one token.
* Made by `python -m tools.embedded_weights.notes --ie <folder> --notes <mtsamples_raw.jsonl>`, with the
  generator of synthetic notes as it was before its last corrections of wording.
"""


def write_cards(folder: Path, facts: dict[str, Any]) -> None:
    """README.md in each folder that `facts` knows."""
    if "decoder" in facts:
        (folder / "decoder" / "README.md").write_text(DECODER.format(**facts["decoder"]), encoding="utf-8")
    if "notes_decoder" in facts:
        (folder / "notes_decoder" / "README.md").write_text(
            NOTES.format(**facts["notes_decoder"]), encoding="utf-8"
        )
    if "encoder" in facts:
        each = ", ".join(f"{name} {value}" for name, value in facts["encoder"]["auc"].items())
        text = ENCODER.format(**facts["encoder"], each=each)
        (folder / "encoder" / "README.md").write_text(text, encoding="utf-8")
