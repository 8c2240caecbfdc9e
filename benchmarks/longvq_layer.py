"""Compare one LongVQ layer with the same layer without quantised keys: CPU time of forward and backward.

    python benchmarks/longvq_layer.py [--length 4096] [--d-model 64] [--codebook 512] [--window 128] [--batch 4]
        [--attention softmax] [--bidirectional] [--repeats 5]

Both layers run alternately in one thread. ``benchmarks/long_lengths.py`` measures the layer alone at greater lengths.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import nn

from lrtasks.models.longvq import LongVQ, LongVQLayer


def seconds(layer: nn.Module, x: torch.Tensor) -> float:
    start = time.process_time()
    layer(x).square().sum().backward()
    return time.process_time() - start


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
    settings: dict[str, Any] = {
        "d_model": arguments.d_model,
        "codebook": arguments.codebook,
        "window": arguments.window,
        "attention": arguments.attention,
    }
    x = torch.randn(arguments.batch, arguments.length, arguments.d_model)
    causal = not arguments.bidirectional
    layers = {
        quantise: LongVQLayer(LongVQ(**settings, quantise=quantise), arguments.length, causal)
        for quantise in (True, False)
    }
    times: dict[bool, list[float]] = {quantise: [] for quantise in layers}
    for layer in layers.values():  # the first pass initialises the codebook and warms up
        seconds(layer, x)
    for _ in range(arguments.repeats):
        for quantise, layer in layers.items():
            times[quantise].append(1e3 * seconds(layer, x))
    ours, theirs = (statistics.median(times[quantise]) for quantise in (True, False))
    case = (
        f"length {arguments.length}, d_model {arguments.d_model}, codebook {arguments.codebook},"
        f" window {arguments.window}, batch {arguments.batch}, {'causal' if causal else 'bidirectional'}"
    )
    print(f"{case}: {ours:.0f} ms against {theirs:.0f} ms of CPU time, {theirs / ours:.1f} times less")


if __name__ == "__main__":
    main()
