# SPDX-License-Identifier: Apache-2.0
"""Types of the settings that several methods have, each with its bounds and its description."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

PositiveCount = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
RoundShare = Annotated[Share, Field(description="share of a round's steps with a rising rate")]
ClipNorm = Annotated[float | None, Field(gt=0, description="largest gradient norm; null for any")]
LearningRate = Annotated[float, Field(gt=0, description="of the optimiser, at its highest")]
WeightDecay = Annotated[float, Field(ge=0, description="of the optimiser")]
BatchSize = Annotated[int, Field(ge=1, description="examples of a mini-batch")]
EvaluationBatch = Annotated[int, Field(ge=1, description="examples of a batch in evaluations")]
ReportTokens = Annotated[int, Field(ge=1, description="most of a training report; longer ones are cut")]
Passes = Annotated[int, Field(ge=1, description="passes in a round, unless the job says steps or fraction")]
Sentences = Annotated[int, Field(ge=1, description="of a window; more keep relations across sentences")]
