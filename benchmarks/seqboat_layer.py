"""Compare one SeqBoat layer with a plain form of the same layer: CPU time of forward and backward.

    python benchmarks/seqboat_layer.py [--length 4096] [--d-model 64] [--window 256] [--rate 0.5] [--batch 4]
        [--bidirectional] [--repeats 5]

The plain form works as the public code does: it gathers the active rows and columns of an L × L matrix of relative
biases, makes a table of d_model × states × L exponentials, and uses FFTs of four times the length. Both forms have the
same parameters. The script first compares their gradients with respect to the input, then times both forms alternately
in one thread. ``benchmarks/long_lengths.py`` measures the layer alone at greater lengths.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import timeit
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.models.ops.convolution import SSM
from lrtasks.models.ops.scoped_attention import SharedAttention
from lrtasks.models.seqboat import SeqBoat, SeqBoatLayer


class PlainSSM(nn.Module):
    """The same moving average from a full table of exponentials, by FFTs of length 4 L."""

    def __init__(self, ssm: SSM) -> None:
        super().__init__()
        self.kernel, self.omega = ssm.kernel, ssm.omega

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        length, size = x.shape[1], 4 * x.shape[1]
        weight, log_decay = self.kernel.coefficients()
        table = torch.exp(log_decay.unsqueeze(-1) * torch.arange(length))
        taps = torch.einsum("kdn,kdnl->kdl", weight, table)
        circle = F.pad(taps[0], (0, size - length))
        if len(taps) == 2:
            ahead = F.pad(taps[1], (0, size - length))
            circle = circle + ahead.flip(-1).roll(1, -1)
        u = x.transpose(1, 2)
        y = torch.fft.irfft(torch.fft.rfft(circle) * torch.fft.rfft(u, n=size), n=size)[..., :length]
        return y.transpose(1, 2) + self.omega * x


class PlainAttention(nn.Module):
    """The same softmax attention in blocks of a window, with its bias from an L × L matrix."""

    def __init__(self, attention: SharedAttention, length: int) -> None:
        super().__init__()
        self.gamma, self.beta, self.bias, self.scope = attention.gamma, attention.beta, attention.bias, attention.scope
        self.length = length

    def forward(self, z: Tensor, v: Tensor, valid: Tensor | None, positions: Tensor) -> Tensor:
        q, k = z * self.gamma[0] + self.beta[0], z * self.gamma[1] + self.beta[1]
        place = torch.arange(self.length)
        every = self.bias(place - place.unsqueeze(1))
        bias = every[positions.unsqueeze(2), positions.unsqueeze(1)]
        width, block = q.shape[1], self.scope.before
        back, ahead = block, 0 if self.scope.causal else block
        extra = -width % block
        rank = torch.arange(width + extra)
        q, k, v = (F.pad(x, (0, 0, 0, extra)) for x in (q, k, v))
        k, v = (F.pad(x, (0, 0, back, ahead)).unfold(1, back + block + ahead, block) for x in (k, v))
        keys = F.pad(rank, (back, ahead), value=-1).unfold(0, back + block + ahead, block)
        queries = rank.view(-1, block)
        near = keys.unsqueeze(1) - queries.unsqueeze(2)
        seen = (keys.unsqueeze(1) >= 0) & (near.abs() <= block)
        seen = seen & (near <= 0) if self.scope.causal else seen
        bias = F.pad(bias, (0, extra, 0, extra))[:, queries.unsqueeze(2), keys.unsqueeze(1)]
        if valid is not None:
            seen = seen & F.pad(valid, (0, extra))[:, keys].unsqueeze(2)
        scores = q.unflatten(1, (-1, block)) @ k / q.shape[-1] ** 0.5 + bias
        weights = torch.softmax(scores.masked_fill(~seen, -5e4), -1)
        return (weights @ v.transpose(-1, -2)).flatten(1, 2)[:, :width]


def make_layer(arguments: argparse.Namespace) -> tuple[SeqBoatLayer, Tensor]:
    """Return this library's layer, with the requested fraction of active tokens, and an input."""
    config = SeqBoat(d_model=arguments.d_model, window=arguments.window)
    x = torch.randn(arguments.batch, arguments.length, arguments.d_model)
    layer = SeqBoatLayer(
        config, arguments.length, config.attention_scope(arguments.length, not arguments.bidirectional)
    )
    with torch.no_grad():
        router = layer.sparse[0].router
        logits = router.logits(F.silu(layer.ssm(x)))
        router.logits.bias[0] += torch.quantile(logits[..., 1] - logits[..., 0], 1 - arguments.rate)
    return layer, x


def plain_form(layer: SeqBoatLayer, length: int) -> SeqBoatLayer:
    """Return the same layer with the plain parts above and equal parameters."""
    plain = copy.deepcopy(layer)
    plain.ssm = PlainSSM(plain.ssm)
    unit = plain.sparse[0].inner
    unit.attention = PlainAttention(unit.attention, length)
    return plain


def step(layer: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad is not None
    return x.grad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bidirectional", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer, x = make_layer(arguments)
    forms = [layer, plain_form(layer, arguments.length)]
    gradients = [step(form, x) for form in forms]  # warms up
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-3)
    timers = [timeit.Timer(partial(step, form, x), "gc.enable()", time.process_time) for form in forms]
    rounds = [[1e3 * timer.timeit(1) for timer in timers] for _ in range(arguments.repeats)]
    ours, theirs = map(statistics.median, zip(*rounds, strict=True))
    rate = layer.sparse[0].diagnostics()["activation_rate"]
    case = f"length {arguments.length}, d_model {arguments.d_model}, window {arguments.window}, batch {arguments.batch}"
    case = f"{case}, {'bidirectional' if arguments.bidirectional else 'causal'}, {rate:.2f} active"
    print(f"{case}: {ours:.0f} ms against {theirs:.0f} ms of CPU time, {theirs / ours:.1f} times less")


if __name__ == "__main__":
    main()
