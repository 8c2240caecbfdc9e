"""The filters of a layer of Focus: a sequence cut into bins of time, and what a run shows of them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lrtasks.models.ops.iir import (
    circular_filter,
    filter_bins,
    filter_step,
    frequency_response,
    impulse_response,
    pole_radius,
)
from lrtasks.models.portraits import Portrait

Filtering = Literal["reset", "carry", "circular"]

SAMPLES = 2  # of the last batch, from the first on, that record and portraits show
RECORDED = 9  # frequencies in the record, evenly from 0 to the highest one
DRAWN = 65  # frequencies in a portrait
TAPS = 48  # of an impulse response in a portrait


class BinFilter(nn.Module):
    """Filter ``(batch, length, d_model)`` bin by bin with given coefficients.

    Bins without coefficients, at the start, pass as they are; with ``"carry"`` each of the F filters then takes an
    equal share of their outputs for its past.

    Args:
        bin_length: positions per bin, R; the last bin is padded with zeros.
        unfiltered: bins at the start without coefficients, 0 or 1.
        filtering: ``"reset"``: causal, each bin from zeros; ``"carry"``: causal, outputs go on from bin to bin;
            ``"circular"``: :func:`lrtasks.models.ops.iir.circular_filter`, not causal.
        conjugate: as the circular form takes it.
    """

    theta: Tensor | None = None  # of the samples shown, from the last forward pass

    def __init__(self, bin_length: int, unfiltered: int, filtering: Filtering, *, conjugate: bool = True) -> None:
        super().__init__()
        self.bin_length, self.unfiltered, self.conjugate = bin_length, unfiltered, conjugate
        self.filtering: Filtering = filtering

    def forward(self, x: Tensor, theta: Tensor) -> Tensor:
        """``theta``: ``(batch or 1, d_model, bins or 1, F, 2)`` for the bins after the unfiltered ones."""
        self.theta = theta[:SAMPLES].detach()
        length = x.shape[1]
        padded = functional.pad(x, (0, 0, 0, -length % self.bin_length))
        signal = padded.reshape(len(x), -1, self.bin_length, x.shape[2]).permute(0, 3, 1, 2)
        passing, rest = signal[:, :, : self.unfiltered], signal[:, :, self.unfiltered :]
        if not rest.shape[2]:
            return x
        if self.filtering == "circular":
            filtered = circular_filter(rest, theta, conjugate=self.conjugate)
        else:
            filtered = filter_bins(rest, theta, self._past(passing, theta) if self.filtering == "carry" else None)
        y = torch.cat([passing, filtered], 2).permute(0, 2, 3, 1).flatten(1, 2)
        return y[:, :length]

    def initial_state(self, batch: int, theta: Tensor) -> Tensor:
        """Last two outputs of each filter, ``(batch, d_model, F, 2)``; ``theta`` as :meth:`step` takes it."""
        return theta.new_zeros(batch, *theta.shape[1:])

    def step(self, x: Tensor, theta: Tensor, past: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """One position ``(batch, d_model)`` of a causal form.

        Args:
            x: input.
            theta: of the present bin, ``(batch or 1, d_model, F, 2)``; zeros in an unfiltered one.
            past: state.
            position: of the input, from 0.
        """
        number, inside = divmod(position, self.bin_length)
        if self.filtering == "reset" and not inside:
            past = torch.zeros_like(past)
        return filter_step(x / theta.shape[-2] if number < self.unfiltered else x, theta, past)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, Any]:
        """Figures of the last forward pass.

        ``pole_radius``: largest absolute value of a filter's poles, mean over filters, channels and bins;
        ``frequency_response``: absolute value of the summed filters' response, mean over channels, at nine
        frequencies from 0 to half a turn per position, by sample and by bin (1 in an unfiltered bin).
        """
        if self.theta is None or not self.theta.numel():
            return {}
        return {
            "pole_radius": float(pole_radius(self.theta).mean()),
            "frequency_response": (self._responses(self.theta, RECORDED) * 1e4).round().div(1e4).tolist(),
        }

    @torch.no_grad()
    def portraits(self) -> list[Portrait]:
        """Responses of each bin of the samples shown: by frequency, and of one channel in time."""
        if self.theta is None or not self.theta.numel():
            return []
        responses = self._responses(self.theta, DRAWN)
        images = [
            Portrait(
                f"frequency response, sample {sample}",
                "image",
                {"response": response.cpu().numpy()},
                x_label=f"frequency (half turns per position / {DRAWN - 1})",
                y_label="bin",
            )
            for sample, response in enumerate(responses)
        ]
        theta = self.theta[0]
        channel = int(pole_radius(theta).amax((1, 2)).argmax())
        taps = impulse_response(theta[channel].double(), TAPS).sum(-2).cpu().numpy()
        series = {f"bin {number + self.unfiltered}": response for number, response in enumerate(taps)}
        return [*images, Portrait("impulse responses, sample 0", "lines", series, "position", f"channel {channel}")]

    def _past(self, passing: Tensor, theta: Tensor) -> Tensor:
        """The filters' shares of the last two positions before the first filtered bin, newest first."""
        filters = theta.shape[-2]
        last = functional.pad(passing.flatten(2), (2, 0))[..., -2:].flip(-1) / filters
        return last.unsqueeze(2).expand(-1, -1, filters, -1)

    def _responses(self, theta: Tensor, frequencies: int) -> Tensor:
        """``|sum_f H_f|``, mean over channels, ``(samples, bins, frequencies)``."""
        omega = torch.linspace(0, torch.pi, frequencies, dtype=torch.float64, device=theta.device)
        response = frequency_response(theta.double(), omega).sum(-2).abs().mean(1)
        return functional.pad(response, (0, 0, self.unfiltered, 0), value=1.0)
