"""Compare recurrent ops with their plain loops, and measure the growth of time and memory with the length.

    python benchmarks/recurrent_ops.py [--ops diagonal,gla] [--batch 4] [--repeats 3] [--no-growth]

The script prints for each op the CPU time of a forward and a backward pass at 4,096 positions, the same time of the
loop over positions, their ratio, the required ratio, and time and peak memory at 16,384 positions divided by those at
4,096 (4 is linear). It uses one thread. Each time is the shortest of the repeats (the loop runs once); each peak comes
from its own process.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.bench.measure import PeakMemory, run_in_process
from lrtasks.models import xlstm
from lrtasks.models.lstm import gru
from lrtasks.models.ops import decay as decays
from lrtasks.models.ops import delta_rule, scans

LENGTHS = (4096, 16384)
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment that makes glibc keep freed memory, as it does after some steps of a training run with equal steps."""
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Environment that makes glibc return freed memory at once, so that resident memory equals used memory."""
TIME_LIMIT = 600.0

Inputs = tuple[Tensor, ...]


@dataclass
class Op:
    """One op: inputs by batch size and length, the fast form, the loop, and the required ratio of their times."""

    inputs: Callable[[int, int], Inputs]
    fast: Callable[..., Tensor]
    loop: Callable[..., Tensor]
    bar: float | None


def normal(*shape: int) -> Tensor:
    return torch.randn(shape)


def heads(batch: int, length: int, count: int, key: int, value: int) -> Inputs:
    """Return q and k, normalised to length 1, and v."""
    q, k = (F.normalize(normal(batch, length, count, key), dim=-1) for _ in range(2))
    return q, k, normal(batch, length, count, value)


def decay(*shape: int, strength: float = 1.0) -> Tensor:
    return F.logsigmoid(normal(*shape) + 2) * strength


def beta(batch: int, length: int, count: int) -> Tensor:
    return normal(batch, length, count).sigmoid()


def delta_inputs(count: int, width: int, per_channel: bool) -> Callable[[int, int], Inputs]:
    def inputs(batch: int, length: int) -> Inputs:
        shape = (batch, length, count, width) if per_channel else (batch, length, count)
        return *heads(batch, length, count, width, width), beta(batch, length, count), decay(*shape)

    return inputs


def low_rank_inputs(count: int, width: int) -> Callable[[int, int], Inputs]:
    def inputs(batch: int, length: int) -> Inputs:
        r, kk, v = heads(batch, length, count, width, width)
        w, a = -0.6065 * normal(*r.shape).sigmoid(), normal(*r.shape).sigmoid()
        return r, w, normal(*r.shape), v, -kk, kk * a

    return inputs


def first(function: Callable[..., tuple[Tensor, object]]) -> Callable[..., Tensor]:
    """Return a function that returns only the first result of ``function``, the output."""
    return lambda *inputs: function(*inputs)[0]


def selective_inputs(batch: int, length: int) -> Inputs:
    D, N = 128, 16
    A = -torch.arange(1.0, N + 1).repeat(D, 1)
    return normal(batch, length, D), F.softplus(normal(batch, length, D) - 4), A, *(normal(batch, length, N),) * 2


def both(op: Callable[..., tuple[Tensor, object]]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return the fast form and the loop of an op, each returning only the output."""
    return first(op), first(partial(op, plain=True))


SCALAR, CHANNEL = both(decays.scalar_decay), both(decays.channel_decay)
RNN = nn.GRU(64, 64, batch_first=True)
DELTA, LOW_RANK = both(delta_rule.delta_rule), both(delta_rule.low_rank_rule)

OPS = {
    "diagonal": Op(
        lambda b, n: (normal(b, n, 64).sigmoid(), normal(b, n, 64)),
        scans.diagonal_scan,
        partial(scans.diagonal_scan, form="plain"),
        3.5,
    ),
    "scalar": Op(lambda b, n: (*heads(b, n, 4, 16, 16), decay(b, n, 4)), *SCALAR, 6),
    "ssd": Op(lambda b, n: (*heads(b, n, 1, 64, 1)[:2], normal(b, n, 2, 64), decay(b, n, 2)), *SCALAR, 6),
    "gla": Op(lambda b, n: (*heads(b, n, 4, 16, 16), decay(b, n, 4, 16)), *CHANNEL, 6),
    "gla-strong": Op(lambda b, n: (*heads(b, n, 4, 16, 16), decay(b, n, 4, 16, strength=50)), *CHANNEL, None),
    "gated-delta": Op(delta_inputs(4, 16, False), *DELTA, 6),
    "gated-delta-64": Op(delta_inputs(1, 64, False), *DELTA, 6),
    "kda": Op(delta_inputs(4, 16, True), *DELTA, 5),
    "rwkv7": Op(low_rank_inputs(4, 16), *LOW_RANK, 4.5),
    "rwkv7-64": Op(low_rank_inputs(1, 64), *LOW_RANK, 4.5),
    # compared with the loop of the scalar decay: the mLSTM's own loop does more work per position
    "mlstm": Op(
        lambda b, n: (*heads(b, n, 4, 16, 16), normal(b, n, 4), normal(b, n, 4) + 2),
        first(xlstm.mlstm),
        lambda q, k, v, i, f: SCALAR[1](q, k, v * i.exp().unsqueeze(-1), F.logsigmoid(f)),
        6,
    ),
    "s6": Op(selective_inputs, *both(scans.selective_scan), 1),
    "slstm": Op(
        lambda b, n: (normal(b, n, 4, 2, 16), normal(b, n, 4, 2, 16), normal(4, 4, 16), normal(4, 4, 16, 16) / 4),
        xlstm.slstm,
        partial(xlstm.slstm, plain=True),
        2,
    ),
    # compared with torch's GRU
    "gru": Op(
        lambda b, n: (normal(b, n, 64),),
        lambda x: gru(RNN, x, x.new_zeros(1, len(x), 64))[0],
        lambda x: RNN(x)[0],
        None,
    ),
}


def seconds(function: Callable[..., Tensor], inputs: Inputs) -> float:
    """Return the CPU time of one forward and backward pass."""
    leaves = [value.detach().requires_grad_() for value in inputs]
    start = time.process_time()
    y = function(*leaves)
    y.backward(torch.ones_like(y))
    return time.process_time() - start


def fastest(function: Callable[..., Tensor], inputs: Inputs, repeats: int) -> float:
    return min(seconds(function, inputs) for _ in range(repeats))


def peak_bytes(name: str, batch: int, length: int) -> int | None:
    """Return the peak resident memory of one pass minus the memory before it (Linux)."""
    torch.set_num_threads(1)
    op = OPS[name]
    seconds(op.fast, op.inputs(1, 256))  # loads libraries
    inputs = op.inputs(batch, length)
    memory = PeakMemory(torch.device("cpu"))
    seconds(op.fast, inputs)
    return memory.above_start()


def report(names: Iterable[str], batch: int, repeats: int, growth: bool) -> None:
    print(f"{'op':<15}{'fast':>9}{'loop':>10}{'ratio':>7}{'bar':>5}{'time x4':>9}{'peak':>9}{'peak x4':>9}")
    for name in names:
        op = OPS[name]
        torch.manual_seed(0)
        inputs = op.inputs(batch, LENGTHS[0])
        seconds(op.fast, inputs)
        fast, loop = fastest(op.fast, inputs, repeats), fastest(op.loop, inputs, 1)
        bar = "" if op.bar is None else f"{op.bar:g}"
        line = f"{name:<15}{1e3 * fast:6.0f} ms{1e3 * loop:7.0f} ms{loop / fast:7.1f}{bar:>5}"
        if growth:
            longer = fastest(op.fast, op.inputs(batch, LENGTHS[1]), repeats)
            peaks = [run_in_process(peak_bytes, name, batch, n, time_limit=TIME_LIMIT) for n in LENGTHS]
            for failed in (peak for peak in peaks if isinstance(peak, dict)):
                raise SystemExit(f"{name}: {failed['reason']}")
            small, large = peaks
            line += f"{longer / fast:9.1f}{small / 1e6:6.0f} MB{large / small:9.1f}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default=",".join(OPS), help=f"some of {', '.join(OPS)}")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-growth", action="store_true", help="leave out the longer sequence")
    arguments = parser.parse_args()
    ops = arguments.ops.split(",")
    for name in (name for name in ops if name not in OPS):
        parser.error(f"unknown op {name!r}; allowed: {', '.join(OPS)}")
    torch.set_num_threads(1)
    if os.environ.get("MALLOC_MMAP_MAX_") is None:  # read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_FREED})
    else:
        for name in KEEP_FREED:  # processes started from here on do not keep it
            del os.environ[name]
        os.environ.update(GIVE_BACK)
        report(ops, arguments.batch, arguments.repeats, not arguments.no_growth)


if __name__ == "__main__":
    main()
