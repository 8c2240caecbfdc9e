"""Compare one LongVQ layer with the same layer without quantised keys: CPU time of forward and backward.

    python benchmarks/longvq_layer.py [--length 4096] [--d-model 64] [--codebook 512] [--window 128] [--batch 4]
        [--attention softmax] [--bidirectional] [--repeats 5]

Both layers run alternately in one thread. ``benchmarks/long_lengths.py`` measures the layer alone at greater lengths.
"""

from __future__ import annotations

import argparse
import statistics
import time
import timeit
from functools import partial
from typing import Any

import torch
from torch import nn

from lrtasks.models.longvq import LongVQ, LongVQLayer


def step(layer: nn.Module, x: torch.Tensor) -> None:
    layer(x).square().sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--codebook", type=int, default=512)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--attention", default="softmax")
    parser.add_argument("--bidirectional", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings: dict[str, Any] = {name: vars(arguments)[name] for name in ("d_model", "codebook", "window", "attention")}
    x = torch.randn(arguments.batch, arguments.length, arguments.d_model)
    causal = not arguments.bidirectional
    configs = [LongVQ(**settings, quantise=quantise) for quantise in (True, False)]
    steps = [partial(step, LongVQLayer(config, arguments.length, causal), x) for config in configs]
    for first in steps:  # initialises the codebook and warms up
        first()
    timers = [timeit.Timer(each, "gc.enable()", time.process_time) for each in steps]
    rounds = [[1e3 * timer.timeit(1) for timer in timers] for _ in range(arguments.repeats)]
    ours, theirs = map(statistics.median, zip(*rounds, strict=True))
    case = (
        f"length {arguments.length}, d_model {arguments.d_model}, codebook {arguments.codebook},"
        f" window {arguments.window}, batch {arguments.batch}, {'causal' if causal else 'bidirectional'}"
    )
    print(f"{case}: {ours:.0f} ms against {theirs:.0f} ms of CPU time, {theirs / ours:.1f} times less")


if __name__ == "__main__":
    main()
