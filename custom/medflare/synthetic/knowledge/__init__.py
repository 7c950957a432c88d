# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals that hold questions about a small world of diseases, or summaries of reports."""

from medflare.synthetic.knowledge.files import write_questions_demo, write_summaries_demo
from medflare.synthetic.knowledge.hospitals import QuestionsDemo, question_hospitals
from medflare.synthetic.knowledge.summaries import SummariesDemo, summary_hospitals

__all__ = [
    "QuestionsDemo",
    "SummariesDemo",
    "question_hospitals",
    "summary_hospitals",
    "write_questions_demo",
    "write_summaries_demo",
]
