# SPDX-License-Identifier: Apache-2.0
"""Tasks: from a site's records to examples, predictions, scores and an evaluation record.

`TASKS` is the only registry of tasks. What depends on a task elsewhere (sections of the result page,
synthetic hospitals) is registered there under the same names.
"""

from __future__ import annotations

from medflare.core.errors import ConfigError
from medflare.core.task import Task

_TEXT = ("bleu_1", "bleu_4", "meteor", "rouge_l")
_LABELS = ("label_f1", "label_micro_f1", "label_macro_f1")
_CONTROL = "label_f1_other_patients"
_OVERLAP = ("rouge_score.rouge_scorer",)
"""It loads all of nltk and scikit-learn."""
_CHANGES = (
    *("change_f1", "change_f1_other_patients", "change_opposite"),
    *("change_accuracy", "change_accuracy_commonest", "first_visit_changes"),
)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="reports",
            reads="studies",
            record_name="study",
            records_name="studies",
            headline=(*_TEXT, "cider", *_LABELS, _CONTROL),
            score_result="medflare.tasks.reports.evaluation:score_result",
            tests_import=_OVERLAP,
        ),
        Task(
            name="visits",
            reads="visits",
            record_name="study",
            records_name="studies",
            headline=(*_TEXT, "cider", *_LABELS, _CONTROL, *_CHANGES),
            score_result="medflare.learners.visit_results:score_result",
            tests_import=_OVERLAP,
        ),
        Task(
            name="extraction",
            reads="notes",
            record_name="note",
            records_name="notes",
            headline=(
                *("ner_strict_f1", "ner_lenient_f1", "re_gold_strict_f1", "re_e2e_strict_f1"),
                "parse_failure_rate",
            ),
            score_result="medflare.tasks.extraction.evaluation:score_result",
            embedded_backbone="notes_decoder",
        ),
        Task(
            name="questions",
            reads="questions",
            record_name="question",
            records_name="questions",
            headline=("accuracy", "chance"),
            score_result="medflare.tasks.questions.evaluation:score_result",
            embedded_backbone="notes_decoder",
        ),
        Task(
            name="summaries",
            reads="summaries",
            record_name="summary",
            records_name="summaries",
            headline=(*_TEXT, *_LABELS),
            score_result="medflare.tasks.summaries.evaluation:score_result",
            embedded_backbone="notes_decoder",
            tests_import=_OVERLAP,
        ),
    )
}
"""Name -> task."""


def get_task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        ConfigError: there is none; the message lists the names.
    """
    if name not in TASKS:
        raise ConfigError(f"task '{name}' does not exist. Tasks: {', '.join(sorted(TASKS))}.")
    return TASKS[name]
