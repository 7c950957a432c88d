# SPDX-License-Identifier: Apache-2.0
"""Names for the float64 arrays that client selection and knowledge distances compute with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
