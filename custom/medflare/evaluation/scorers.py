# SPDX-License-Identifier: Apache-2.0
"""Optional scorers that need weights of their own, given as local folders; nothing is ever downloaded.

BERTScore: Zhang et al., ICLR 2020, here unrescaled, of the last layer of the model in the folder.
CheXbert: Smit et al., EMNLP 2020; labels chest X-ray reports only. RadGraph F1: Delbrouck et al., Findings of
ACL 2024. RaTEScore: Zhao et al., EMNLP 2024. GREEN: Ostmeier et al., Findings of EMNLP 2024.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import ConfigError, MedflareError
from medflare.evaluation.label_metrics import label_names, label_statistics
from medflare.evaluation.statistics import Statistic, mean_statistic

Texts = Sequence[str]
MetricStatistics = dict[str, Statistic]
BERTSCORE = ("bertscore_precision", "bertscore_recall", "bertscore_f1")
RADGRAPH = ("radgraph_simple", "radgraph_partial", "radgraph_complete")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OptionalScorer:
    """One row of SCORERS.

    Attributes:
        needs: files or folders that must be in the weight folder.
        where: where they are had from.
        metrics: names of what `score` returns.
        score: (references, hypotheses, folder) -> statistics; imports its networks itself.
    """

    needs: tuple[str, ...]
    where: str
    metrics: tuple[str, ...]
    score: Callable[[Texts, Texts, Path], MetricStatistics]


def bertscore(references: Texts, hypotheses: Texts, folder: Path) -> MetricStatistics:
    """Return precision, recall and F1 of greedily matched token vectors; an empty text scores 0."""
    from medflare.evaluation.bertscore import TokenEncoder, bertscores

    columns = bertscores(references, hypotheses, TokenEncoder(folder)).T
    return {name: mean_statistic(column) for name, column in zip(BERTSCORE, columns, strict=True)}


def chexbert(references: Texts, hypotheses: Texts, folder: Path) -> MetricStatistics:
    """Label metrics with both sides labelled by CheXbert."""
    from medflare.labelling.labels import chexbert_labels

    return label_statistics(
        chexbert_labels(references, folder), chexbert_labels(hypotheses, folder), prefix="chexbert"
    )


def radgraph(references: Texts, hypotheses: Texts, folder: Path) -> MetricStatistics:
    """Return RadGraph-XL F1 with its three rewards; "partial" is the one most papers report."""
    from medflare.evaluation.radgraph_f1 import radgraph_scores

    columns = radgraph_scores(references, hypotheses, folder).T
    return {name: mean_statistic(column) for name, column in zip(RADGRAPH, columns, strict=True)}


def ratescore(references: Texts, hypotheses: Texts, folder: Path) -> MetricStatistics:
    """Return RaTEScore as a fraction, with the affinity matrix for long reports."""
    from medflare.evaluation.rate_score import RaTEScore

    return {"ratescore": mean_statistic(RaTEScore(folder).scores(references, hypotheses))}


def green(references: Texts, hypotheses: Texts, folder: Path) -> MetricStatistics:
    """Return mean GREEN: matched findings over matched findings and significant errors, by its 7B model.

    A draft whose analysis names neither scores 0, as in the released code.
    """
    from medflare.evaluation.green import GreenJudge

    return {"green": mean_statistic(GreenJudge(folder).scores(references, hypotheses))}


SCORERS: dict[str, OptionalScorer] = {
    "bertscore": OptionalScorer(
        ("config.json", "tokenizer_config.json"),
        "a folder of an encoder with safetensors, such as huggingface.co/FacebookAI/roberta-large",
        BERTSCORE,
        bertscore,
    ),
    "chexbert": OptionalScorer(
        ("chexbert.pth", "vocab.txt"),
        "github.com/stanfordmlgroup/CheXbert, and vocab.txt of huggingface.co/google-bert/bert-base-uncased",
        label_names("chexbert"),
        chexbert,
    ),
    "radgraph": OptionalScorer(
        ("radgraph-xl/config.json", "radgraph-xl/weights.th", "radgraph-xl/vocabulary"),
        "radgraph-xl.tar.gz of huggingface.co/StanfordAIMI/RRG_scorers, unpacked into radgraph-xl/",
        RADGRAPH,
        radgraph,
    ),
    "ratescore": OptionalScorer(
        ("RaTE-NER-Deberta/config.json", "BioLORD-2023-C/config.json"),
        "huggingface.co/Angelakeke/RaTE-NER-Deberta and huggingface.co/FremyCompany/BioLORD-2023-C",
        ("ratescore",),
        ratescore,
    ),
    "green": OptionalScorer(
        ("config.json", "tokenizer_config.json", "green_prompt.txt"),
        "huggingface.co/StanfordAIMI/GREEN-radllama2-7b, and the prompt of its released code",
        ("green",),
        green,
    ),
}
OPTIONAL_METRICS = tuple(name for row in SCORERS.values() for name in row.metrics)
"""Names of what all of them measure."""


def optional_statistics(
    references: Texts, hypotheses: Texts, folders: Mapping[str, str | Path]
) -> tuple[MetricStatistics, dict[str, str]]:
    """Return statistics of the scorers that can run, and for every other one why it was skipped.

    A scorer that fails is skipped too: it runs last, and what was measured before it must not be lost.

    Raises:
        ConfigError: `folders` names a scorer that does not exist.
    """
    unknown = sorted(set(folders) - set(SCORERS))
    if unknown:
        raise ConfigError(f"scorers: no such scorer {', '.join(unknown)}. Choose from: {', '.join(SCORERS)}.")
    statistics: MetricStatistics = {}
    skipped: dict[str, str] = {}
    for name, row in SCORERS.items():
        reason = f"skipped: no local weights given (--scorer {name}=<folder>)"
        if name in folders and (fault := fault_of_weights(name, Path(folders[name]))):
            reason = f"skipped: {fault}"
        elif name in folders:
            reason = ""
            try:
                with _offline(), contextlib.redirect_stdout(io.StringIO()):
                    statistics |= row.score(references, hypotheses, Path(folders[name]))
            except MedflareError as error:
                reason = f"skipped: {name}: {' '.join(str(error).split())}"
            except Exception as error:  # foreign code; its message may hold a report and stays here
                log.debug("%s failed", name, exc_info=True)
                reason = f"skipped: {name} failed with {type(error).__name__}"
        if reason:
            skipped[name] = reason
    return statistics, skipped


def fault_of_weights(name: str, folder: Path) -> str:
    """Return what the folder of a scorer's weights lacks, "" for nothing."""
    row = SCORERS[name]
    if not folder.exists():
        return f"{name}: there is no {folder}; it is {row.where}"
    missing = [part for part in row.needs if not (folder / part).exists()]
    return f"{name}: {folder} lacks {', '.join(missing)}; it is {row.where}" if missing else ""


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep the Hub clients of foreign scorers from downloading while inside."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
