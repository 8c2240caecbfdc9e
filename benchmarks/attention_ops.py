"""Compare parts of attention with their plain forms: CPU time of forward and backward in one thread.

    python benchmarks/attention_ops.py --repeats 9

Both forms run alternately in one process. The script prints the shortest times, their ratio, and the largest difference
of outputs and gradients, divided by the largest value.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from lrtasks.models.ops.attention import attend_local
from lrtasks.models.ops.layers import ShortConv
from lrtasks.models.ops.positions import BASE, RelativeBias, rotate
from lrtasks.models.ops.scoped_attention import Scope, attend

Form = Callable[..., Tensor]


def plain_attend(q: Tensor, k: Tensor, v: Tensor, bias: RelativeBias) -> Tensor:
    """Compute causal attention with a learned bias from a score matrix of length × length."""
    distance = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None]
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + bias(distance)
    return torch.softmax(scores.masked_fill(distance > 0, -torch.inf), -1) @ v


def plain_rotate(x: Tensor) -> Tensor:
    """Apply rotary positions by cosines and sines."""
    pair = torch.arange(0, x.shape[-1], 2, dtype=torch.float64)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * BASE ** (-pair / x.shape[-1])
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def plain_local(q: Tensor, k: Tensor, v: Tensor, chunk: int) -> Tensor:
    """Compute causal attention to the own and the previous chunk with a mask of length × length."""
    chunks = torch.arange(q.shape[2]) // chunk
    visible = ((chunks[:, None] - chunks) <= 1).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=1.0)


def plain_convolution(x: Tensor, taps: Tensor) -> Tensor:
    """Compute short convolution and SiLU; the positions of the result are adjacent in memory."""
    window = F.pad(x.mT, (taps.shape[-1] - 1, 0))
    return F.silu(F.conv1d(window, taps, groups=len(taps))).mT


def all_keys(qkv: Tensor, width: int) -> Tensor:
    """Compute causal attention with heads of ``width``; ``qkv`` has queries, keys and values along its last axis."""
    q, k, v = torch.unflatten(qkv, -1, (3, -1, width)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cases(length: int) -> dict[str, tuple[Form, Form, list[Tensor]]]:
    """Return by name the package's form, the plain form and the input tensors of both."""
    batch, bias = max(1, 4096 // length), RelativeBias(length)
    q, k, v = (torch.randn(batch, length, width) for width in (24, 24, 96))
    heads = torch.randn(3, batch, 4, length, 32)
    short = ShortConv(3 * 64)
    return {
        "short convolution": (
            lambda x, taps: all_keys(functional_call(short, {"weight": taps}, x), 32),
            lambda x, taps: all_keys(plain_convolution(x, taps), 32),
            [torch.randn(batch, length, 3 * 64), short.weight],
        ),
        "all keys, learned bias": (
            lambda q, k, v, _: attend(q, k, v, scope=Scope(True), function="softmax", bias=bias),
            lambda q, k, v, _: plain_attend(q, k, v, bias),
            [q, k, v, bias.table],
        ),
        "rotary positions": (rotate, plain_rotate, [heads[:2]]),
        "own and previous chunk": (
            lambda x: attend_local(*x, chunk=64, causal=True),
            lambda x: plain_local(*x, chunk=64),
            [heads],
        ),
    }


def measured(form: Form, given: list[Tensor]) -> tuple[float, list[Tensor]]:
    """Return the CPU seconds of forward and backward, and the output with its gradients."""
    tensors = [x.detach().requires_grad_() if not isinstance(x, torch.nn.Parameter) else x for x in given]
    began = time.process_time()
    y = form(*tensors)
    gradients = torch.autograd.grad(y, tensors, y.detach())
    return time.process_time() - began, [y.detach(), *gradients]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 4096])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'':24}{'length':>8}{'ours':>12}{'plain':>12}{'ratio':>8}  difference")
    for length in options.lengths:
        for name, (ours, plain, given) in cases(length).items():
            times: dict[str, list[float]] = {"ours": [], "plain": []}
            for _ in range(options.repeats):
                found, wanted = measured(ours, given), measured(plain, given)
                times["ours"].append(found[0])
                times["plain"].append(wanted[0])
            error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found[1], wanted[1], strict=True))
            best = {form: min(seconds) * 1e3 for form, seconds in times.items()}
            ratio = best["plain"] / best["ours"]
            print(f"{name:24}{length:8}{best['ours']:9.1f} ms{best['plain']:9.1f} ms{ratio:8.1f}  {error:.0e}")


if __name__ == "__main__":
    main()
