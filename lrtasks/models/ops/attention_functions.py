"""What turns scores into attention weights: softmax, squared ReLU, Laplace.

Sources: squared ReLU, "Primer", section 3; Laplace, "Mega: Moving Average Equipped Gated Attention", section 3.3, with
μ = sqrt(1/2) and σ = sqrt(1/(4π)) rounded to six digits as in its public code.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

AttentionFunction = Literal["softmax", "relu2", "laplace"]

# Added to the scores of keys that a query does not see: all three functions give exactly 0 there, while a query without
# any key gets finite weights from a softmax. Half precision can hold it.
MASKED = -5e4
LAPLACE_MEAN = 0.707107
LAPLACE_STD = 0.282095


def relu2(scores: Tensor) -> Tensor:
    """``max(s, 0)²``."""
    return F.relu(scores).square()


def laplace(scores: Tensor) -> Tensor:
    """``½ (1 + erf((s - μ) / (σ √2)))``, a smooth step that is 0.006 at 0."""
    return 0.5 * (1 + torch.erf((scores - LAPLACE_MEAN) / (LAPLACE_STD * math.sqrt(2))))


def attention_weights(scores: Tensor, function: AttentionFunction) -> Tensor:
    """Weights over the last axis; a score of :data:`MASKED` or less gets 0 if another is not masked."""
    if function == "softmax":
        return torch.softmax(scores, -1)
    return relu2(scores) if function == "relu2" else laplace(scores)
