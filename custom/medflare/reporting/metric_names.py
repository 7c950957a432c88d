# SPDX-License-Identifier: Apache-2.0
"""Display names of metrics in tables, charts and pages."""

from __future__ import annotations

_AVERAGES = (("micro", "micro", ""), ("macro", "macro", ""), ("micro5", "micro", " (5)"))
_RATIOS = (("precision", "P"), ("recall", "R"), ("f1", "F1"))

NAMES: dict[str, str] = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "meteor": "METEOR",
    "meteor_exact_stem": "METEOR without synonyms",
    **{f"rouge_{n}": f"ROUGE-{n}" for n in range(1, 5)},
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "sacrebleu": "sacreBLEU",
    **{f"r2gen_bleu_{n}": f"BLEU-{n}, R2Gen's rules" for n in range(1, 5)},
    "r2gen_rouge_l": "ROUGE-L, R2Gen's rules",
    "label_precision": "label P",
    "label_recall": "label R",
    "label_f1": "label F1",
    "label_f1_other_patients": "label F1, other patients",
    **{
        f"label_{average}_{ratio}": f"{name} {short}{five}"
        for average, name, five in _AVERAGES
        for ratio, short in _RATIOS
    },
    "label_unrecognised": "references not understood",
    "label_unrecognised_generated": "outputs not understood",
    **{
        f"{subtask}_{match}_{ratio}": f"{name} {match.replace('_', ' ')} {short}"
        for subtask, name in (("ner", "NER"), ("re_gold", "RE"), ("re_e2e", "RE end to end"))
        for match in [k for m in ("strict", "lenient") for k in (m, f"{m}_untyped", f"macro_{m}")]
        for ratio, short in _RATIOS
    },
    "cut_rate": "questions cut to fit",
    "margin": "margin of the right option, nats",
    "length_ratio": "words for a word of the reference",
    "change_f1": "change F1",
    "change_f1_other_patients": "change F1, other patients",
    "change_accuracy": "right change where one is stated",
    "change_accuracy_commonest": "the commonest change for all",
    "change_precision": "change P",
    "change_recall": "change R",
    "change_moved_f1": "change F1, moved",
    "change_macro_f1": "change macro F1",
    "change_opposite": "opposite change",
    "first_visit_changes": "changes at a first visit",
    "parse_failure_rate": "unreadable outputs",
    "duplicate_rate": "repeated items",
    **{"ner/": "NER by type", "re_gold/": "RE by type", "re_e2e/": "RE end to end by type"},
    **{"bertscore": "BERTScore", "chexbert": "CheXbert", "radgraph": "RadGraph"},
    "bertscore_f1": "BERTScore F1",
    "chexbert_f1": "CheXbert F1",
    "chexbert_micro_f1": "CheXbert micro F1",
    "radgraph_partial": "RadGraph F1",
    "ratescore": "RaTEScore",
    "green": "GREEN",
}
LOSSES = {
    "loss": "language loss",
    "loss_specialised": "language loss, personal adapter",
    "loss_hcl": "contrastive loss",
    "loss_cls": "diagnosis loss",
    "loss_kd_generic": "distillation to the generic adapter",
    "loss_kd_specialised": "distillation to the personal adapter",
}
PHASES = {"train_": "training", "val_": "validation", "test_": "test"}
CONTROLS = (
    "chance",
    "label_f1_other_patients",
    "change_f1_other_patients",
    "change_accuracy_commonest",
)
"""Metrics of which neither more nor less is better: others are read beside them."""
LESS_IS_BETTER = (
    "parse_failure_rate",
    "duplicate_rate",
    "change_opposite",
    "first_visit_changes",
    "label_unrecognised",
    "label_unrecognised_generated",
)


def display_name(metric: str) -> str:
    """Return the metric's name as papers write it, or its key with spaces."""
    return NAMES.get(metric, metric.replace("_", " "))


def curve_name(metric: str) -> str:
    """Return the name of a curve with its phase: `val_bleu_4` -> `BLEU-4, validation`."""
    for prefix, phase in PHASES.items():
        if metric.startswith(prefix):
            return f"{curve_name(metric.removeprefix(prefix))}, {phase}"
    return LOSSES.get(metric) or NAMES.get(metric) or metric.replace("_", " ")
