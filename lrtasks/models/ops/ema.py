"""Multi-dimensional damped exponential moving average (MD-EMA), and the linear map around such a kernel.

Sources: "Mega: Moving Average Equipped Gated Attention", section 3.2, and its public code, which SeqBoat and
LongVQ take.

    d, N     channels, states per channel (the papers' h)
    p, a     sigmoid(delta), sigmoid(alpha), each (d, N): the papers' α and δ, whose names the code exchanges
    φ        decay 1 - p a, between 0 and 1
    K[c,t]   sum_n gamma[c,n]/sqrt(N) p[c,n] beta[c,n] φ[c,n]^t; the factor 1/sqrt(N) is in the code only
    ω        skip weight, (d,)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lrtasks.models.ops.expkernel import exp_kernel
from lrtasks.models.ops.initialisation import normal_
from lrtasks.models.ops.longconv import fft_conv
from lrtasks.models.ops.longlayer import ExponentialState, Kernel, WindowState, kernel_state


class EMAKernel(Kernel):
    """K[c, t] = sum_n gamma[c, n]/sqrt(N) p[c, n] beta[c, n] (1 - p[c, n] a[c, n])^t, in one or two directions.

    At start delta and alpha are normal with standard deviation 0.2, gamma with 1, and beta is +1, -1, +1, ... over n
    plus normal draws of 0.02.

    Args:
        d_model: channels d.
        d_state: states N.
        directions: 1, or 2 for look-back and look-ahead kernels.
        truncated: cut the normal draws at two standard deviations (SeqBoat) or not (MEGA).
    """

    def __init__(self, d_model: int, d_state: int, directions: int = 1, *, truncated: bool = True) -> None:
        super().__init__()
        self.directions = directions
        shape = (directions, d_model, d_state)
        self.delta = nn.Parameter(normal_(torch.empty(shape), 0.2, truncated=truncated))
        self.alpha = nn.Parameter(normal_(torch.empty(shape), 0.2, truncated=truncated))
        signs = 1.0 - 2.0 * (torch.arange(d_state) % 2)
        self.beta = nn.Parameter(signs + normal_(torch.empty(shape), 0.02, truncated=truncated))
        self.gamma = nn.Parameter(normal_(torch.empty(shape), 1.0, truncated=truncated))

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Weights gamma/sqrt(N) p beta and log φ, each ``(directions, d, N)``, float32 at least."""
        dtype = torch.promote_types(self.delta.dtype, torch.float32)
        p, a = torch.sigmoid(self.delta.to(dtype)), torch.sigmoid(self.alpha.to(dtype))
        weight = self.gamma.to(dtype) * p * self.beta.to(dtype) / math.sqrt(self.gamma.shape[-1])
        # log1p keeps the digits of a slow decay; the bound keeps log φ finite where both sigmoids round to 1
        return weight, torch.log1p(-(p * a).clamp_max(1 - torch.finfo(dtype).eps))

    def forward(self, length: int) -> Tensor:
        weight, log_decay = self.coefficients()
        kernel = exp_kernel(weight.flatten(0, 1).unsqueeze(1), log_decay.flatten(0, 1), None, length)
        return kernel.view(*weight.shape[:2], length)

    @torch.no_grad()
    def recurrence(self) -> tuple[Tensor, Tensor]:
        """Weight and log φ, real float64 ``(d, N)``."""
        weight, log_decay = self.coefficients()
        return weight[0].double(), log_decay[0].double()


class SSM(nn.Module):
    """``y = K * x + ω ⊙ x`` on ``(batch, length, d_model)``, over the past or, with two kernels, on both sides.

        y[t] = sum_{j >= 0} K1[j] x[t - j]  (+ sum_{j >= 0} K2[j] x[t + j])  + ω x[t]

    Both directions weigh the present. Padded inputs count as zero in the sums, not in the term of ω.

    Args:
        kernel: what K is: :class:`EMAKernel`, or any other kernel of one or two directions.
        d_model: channels.
        length: longest sequence.
        kernel_length: keep only that many taps; None for all.
        truncated: cut the normal draws of ω (standard deviation 1) at 2.
    """

    def __init__(
        self, kernel: Kernel, d_model: int, length: int, kernel_length: int | None = None, *, truncated: bool = True
    ) -> None:
        super().__init__()
        self.kernel, self.length = kernel, length
        self.kernel_length = None if kernel_length is None or kernel_length >= length else kernel_length
        self.omega = nn.Parameter(normal_(torch.empty(d_model), 1.0, truncated=truncated))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        u = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)
        taps = self.kernel(min(x.shape[1], self.kernel_length or x.shape[1]))
        y = fft_conv(u.transpose(1, 2), taps[0], taps[1] if self.kernel.directions == 2 else None, lag=0)
        return y.transpose(1, 2) + self.omega * x

    def initial_state(self, batch: int) -> ExponentialState | WindowState:
        """See :func:`lrtasks.models.ops.longlayer.kernel_state`."""
        return kernel_state(self.kernel, batch, self.length, self.kernel_length)

    def step(self, x: Tensor, state: ExponentialState | WindowState) -> tuple[Tensor, ExponentialState | WindowState]:
        """One position ``(batch, d_model)``; equals :meth:`forward` of a causal map."""
        y, state = state.step(x)
        return y.to(x.dtype) + self.omega * x, state
