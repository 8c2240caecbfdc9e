"""Kernels that are sums of exponentials with exponents of each channel's own: DSS and S4D."""

from __future__ import annotations

import torch
from torch import Tensor

from lrtasks.models.ops.expkernel import exp_kernel, working_bytes
from lrtasks.models.ops.longlayer import Kernel


class ChannelKernel(Kernel):
    """K[d, h, l] = Re sum_n weight[d, h, n] exp(exponent[h, n] l), in the parameters' precision, float32 at least."""

    def exponents(self) -> tuple[Tensor, Tensor]:
        """Weights ``(directions, H, N)`` and exponents ``(H, N)``, complex128."""
        raise NotImplementedError

    def forward(self, length: int) -> Tensor:
        weight, exponent = self.exponents()
        dtype = torch.promote_types(next(self.parameters()).dtype, torch.float32).to_complex()
        weight = weight.to(dtype).transpose(0, 1).contiguous()
        return exp_kernel(weight, exponent.real, exponent.imag, length).transpose(0, 1)

    @torch.no_grad()
    def working_bytes(self, length: int, device: torch.device) -> int:
        directions, d_model, exponentials = self.exponents()[0].shape
        return working_bytes(d_model, directions, exponentials, length, device)

    @torch.no_grad()
    def recurrence(self) -> tuple[Tensor, Tensor]:
        weight, exponent = self.exponents()
        return weight[0], exponent
