"""Compare the CPU time of a training step with its floor, a lower bound: the time of its operations at peak rates.

    python benchmarks/step_floors.py [--models dlr,mega] [--lengths 256,4096] [--task shift] [--repeats 5]

The script uses one thread, the models' preset ``small`` and 4,096 positions per batch (16 sequences of 256, 1 of
4,096). The floor counts every tensor operation of the forward and backward pass:

    floor = FLOPs of products / rate of a product + FLOPs of FFTs / rate of an FFT + bytes / rate of a copy

Bytes count the operands and results of all operations except views. An FFT of n points has 2.5 n log2 n FLOPs (real) or
twice as many (complex). Fused attention has two products forward and five backward; causal attention has half of that.
Torch's LSTM has two products forward and four backward. Compiled loops count the FLOPs of their definition.
The script measures the rates first: a float32 product of 1,024 x 1,024, real FFTs of 4,096 points, and a copy of 3 MB,
which stays in the cache. So the floor shows how efficiently the operations run, not whether they are necessary. The
script prints the shortest time, the floor, their ratio, the number of operations and the megabytes.
"""

from __future__ import annotations

import argparse
import math
import time
import timeit
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from lrtasks.evaluation.optimiser import LOSSES
from lrtasks.models import names
from lrtasks.models.ops import loops
from lrtasks.run_config import RunConfig

POSITIONS = 4096
FUSED = {"_scaled_dot_product_flash_attention_for_cpu": 2, "_scaled_dot_product_flash_attention_for_cpu_backward": 5}
RNNS = {"mkldnn_rnn_layer": 1, "mkldnn_rnn_layer_backward": 2}
LOOPS: dict[str, Callable[..., int]] = {  # FLOPs of the compiled loops, from their arguments; an exponential is one
    "gru_forward": lambda *x: 2 * x[0][..., 0].numel() * x[1].numel(),
    "gru_backward": lambda *x: 2 * x[1][..., 0].numel() * x[2].numel(),
    "slstm_forward": lambda *x: 2 * x[0][..., 0].numel() * x[3][0].numel(),
    "slstm_backward": lambda *x: 2 * x[0][..., 0].numel() * x[3][0].numel(),
    "selective_forward": lambda *x: 7 * x[1][..., 0].numel() * x[2].numel(),
    "selective_backward": lambda *x: 20 * x[1][..., 0].numel() * x[2].numel(),
    "low_rank_forward": lambda *x: (5 if x[4] is None else 9) * x[0].numel() * x[3].shape[-1],
    "low_rank_backward": lambda *x: (14 if x[4] is None else 24) * x[0].numel() * x[3].shape[-1],
    "powers": lambda *x: 3 * x[3].numel(),  # a complex product has 6 FLOPs, and two numbers as its result
    "weighted_powers": lambda *x: 3 * x[2].numel(),
    "power_sums": lambda *x: 5 * x[1].numel(),
}
FFTS = {"_fft_r2c": 2.5, "_fft_c2r": 2.5, "_fft_c2c": 5.0}


class Count(TorchDispatchMode):
    """Counter of operations and compiled loops, their bytes, and FLOPs of products and FFTs, in its context."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.bytes, self.products, self.ffts = 0, 0, 0.0, 0.0
        self.run_loop = loops.run_loop

    def __enter__(self) -> Count:
        loops.run_loop = self._counted_loop
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        loops.run_loop = self.run_loop
        super().__exit__(*error)

    def _counted_loop(self, loop: Callable[..., None], *inputs: Any) -> None:
        self.run_loop(loop, *inputs)
        self._add(x for x in inputs if isinstance(x, Tensor))
        self.products += LOOPS[loop.__name__](*inputs)

    def _add(self, tensors: Iterable[Tensor]) -> None:
        self.operations += 1
        self.bytes += sum(x.numel() * x.element_size() for x in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        self._add((*given, *made))
        packet = func._overloadpacket
        if packet in flop_registry:
            self.products += flop_registry[packet](*args, **kwargs, out_val=out)
        if packet.__name__ in FUSED:
            q, k = given[1:3] if packet.__name__.endswith("_backward") else given[:2]
            causal = any(x is True for x in args)
            self.products += FUSED[packet.__name__] * 2 * q.numel() * k.shape[-2] / (2 if causal else 1)
        if packet.__name__ in RNNS:  # x is (L, B, d_model); then come the maps of the input and of the state
            x, *maps = given[:3]
            self.products += RNNS[packet.__name__] * 2 * x[..., 0].numel() * sum(weight.numel() for weight in maps)
        if packet.__name__ in FFTS:
            points = max(given[0].numel(), made[0].numel())
            length = max(given[0].shape[-1], made[0].shape[-1])
            self.ffts += FFTS[packet.__name__] * points * math.log2(length)
        return out


def shortest(call: Callable[[], object], repeats: int) -> float:
    """Return the shortest CPU time of ``call``, after one call that is not counted."""
    call()
    return min(timeit.repeat(call, "gc.enable()", time.process_time, repeats, number=1))


def rates(repeats: int) -> tuple[float, float, float]:
    """Measure FLOPs per second of a product and of an FFT, and bytes per second of a copy."""
    a, b = torch.randn(2, 1024, 1024)
    signal, source = torch.randn(64, 4096), torch.randn(3 << 18)
    target = torch.empty_like(source)

    def copies() -> None:
        for _ in range(20):
            target.copy_(source)

    product = 2 * 1024**3 / shortest(lambda: a @ b, repeats)
    fft = FFTS["_fft_r2c"] * signal.numel() * 12 / shortest(lambda: torch.fft.rfft(signal), repeats)
    copy = 20 * 2 * source.numel() * 4 / shortest(copies, repeats)
    return product, fft, copy


def step_of(config: RunConfig) -> Callable[[], None]:
    """Return a function that does a forward and backward pass of the run's model on an existing batch."""
    torch.manual_seed(0)
    model, loss = config.build(), LOSSES[config.task.loss]
    batch = config.task.batch(range(config.budget.batch_size))
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss(model(x), y, y).backward()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(names()))
    parser.add_argument("--task", default="shift")
    parser.add_argument("--lengths", default="256,4096")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    product, fft, copy = rates(4 * options.repeats)
    print(f"product {product / 1e9:.0f} GFLOP/s, FFT {fft / 1e9:.0f} GFLOP/s, copy {copy / 1e9:.0f} GB/s")
    print(f"{'model':20}{'length':>8}{'step':>10}{'floor':>10}{'ratio':>7}{'operations':>12}{'MB':>8}")
    for length in map(int, options.lengths.split(",")):
        for name in options.models.split(","):
            given = {"task.length": length, "budget.batch_size": max(1, POSITIONS // length)}
            step = step_of(RunConfig.make(options.task, name, settings=given))
            taken = shortest(step, options.repeats)
            with Count() as count:
                step()
            floor = count.products / product + count.ffts / fft + count.bytes / copy
            row = f"{taken * 1e3:7.1f} ms{floor * 1e3:7.1f} ms{taken / floor:7.1f}{count.operations:12,}"
            print(f"{name:20}{length:8}{row}{count.bytes / 1e6:8.0f}", flush=True)


if __name__ == "__main__":
    main()
