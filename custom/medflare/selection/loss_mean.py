# SPDX-License-Identifier: Apache-2.0
"""Sampled mean of rules that choose sites by the training losses they reported."""

from __future__ import annotations

import logging
import math

from pydantic import Field

from medflare.aggregation.norm_clip import NormClipSettings
from medflare.core.update import Update
from medflare.selection.sampled_mean import MAX_SAMPLES, SampledMean

_log = logging.getLogger(__name__)


class LossSettings(NormClipSettings):
    """Settings of rules that choose by losses."""

    clients: int = Field(default=5, ge=1, le=MAX_SAMPLES)
    """m, different sites that train in a round."""
    loss_metric: str = Field(default="loss", min_length=1)
    """metric of an update that holds the site's training loss; its own word, and forgeable."""


class LossSelectedMean(SampledMean):
    """Sampled mean that remembers the last training loss of every site."""

    settings: LossSettings

    def metrics_read(self) -> tuple[str, ...]:
        return (self.settings.loss_metric,)

    def add(self, site: str, update: Update) -> None:
        """Add the update and remember its loss; a loss that is no number of 0 or more changes nothing."""
        super().add(site, update)
        loss = update.metrics.get(self.settings.loss_metric, math.nan)
        if math.isfinite(loss) and loss >= 0:
            self.known.losses[site] = loss
        else:
            _log.warning(
                "%s of %s is %s; the site keeps the loss before.", self.settings.loss_metric, site, loss
            )
