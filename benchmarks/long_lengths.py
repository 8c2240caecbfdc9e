"""Cost of one layer at 16,384 to 65,536 positions: linear in the length, in time and memory.

    python benchmarks/long_lengths.py [--lengths 16384,32768,65536] [--d-model 64] [--batch 1] [--repeats 3] [--json]

The layers: SeqBoat with its window of 256 active tokens, LongVQ with 512 codes and a window of 128, local attention in
chunks of 1,024, and Focus in chunks of 512 (its own default grows with the length). Each stands between an embedding
and a class per sequence, causal, in one thread. A training step is forward, loss, backward and AdamW. Every figure is
from a process of its own: the shortest of the repeats in CPU time, and peak memory above the process before the layer
was built. An array of length × length float32 alone would take 17.2 GB at 65,536.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from lrtasks.bench.apart import run_apart
from lrtasks.bench.case import Bench, Case, Settings
from lrtasks.bench.growth import growth
from lrtasks.bench.measure import PHASES, cost

HYPER: dict[str, dict[str, Any]] = {
    "seqboat": {"window": 256},
    "longvq": {"codebook": 512, "window": 128},
    "local-attention": {"chunk": 1024},
    "focus": {"chunk": 512},
}
TIME_LIMIT = 600.0


def measure(bench: Bench, model: str, length: int) -> dict[str, Any]:
    """Both phases of one layer at one length."""
    row: dict[str, Any] = {"model": model, "length": length}
    for phase in PHASES:
        outcome = run_apart(cost, Case(bench, model, length), phase, False, time_limit=TIME_LIMIT)
        if outcome.reason:
            raise SystemExit(f"{model} at {length}, {phase}: {outcome.reason}")
        row[f"{phase}_seconds"] = min(outcome.value["cpu_seconds"])
        row[f"{phase}_bytes"] = outcome.value["peak_bytes"]
        row.update({"diagnostics": outcome.value["diagnostics"]} if "diagnostics" in outcome.value else {})
    return row


def exponents(rows: list[dict[str, Any]], model: str) -> dict[str, Any]:
    """With which power of the length each cost of a model grows."""
    found = {}
    for name in (f"{phase}_{unit}" for phase in PHASES for unit in ("seconds", "bytes")):
        grown = growth([(row["length"], row[name]) for row in rows if row["model"] == model])
        found[name] = None if grown is None else [grown.slope, grown.last]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="16384,32768,65536", help="separated by commas")
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    settings = Settings(d_model=arguments.d_model, layers=1, batch=arguments.batch, repeats=arguments.repeats)
    bench = Bench(settings, hyper=HYPER)
    rows = []
    if not arguments.json:
        print(f"{'':<16}{'length':>7}  {'training':>20}  {'inference':>20}")
    for model in HYPER:
        for length in (int(text) for text in arguments.lengths.split(",")):
            rows.append(row := measure(bench, model, length))
            if not arguments.json:
                cells = [f"{1e3 * row[f'{p}_seconds']:8.0f} ms {row[f'{p}_bytes'] / 1e6:6.0f} MB" for p in PHASES]
                print(f"{model:<16}{length:>7}  {'  '.join(cells)}", flush=True)
        found = exponents(rows, model)
        if not arguments.json and all(found.values()):
            cells = [f"{found[f'{p}_seconds'][0]:8.2f}    {found[f'{p}_bytes'][0]:6.2f}   " for p in PHASES]
            print(f"{'':<16}{'power':>7}  {'  '.join(cells)}".rstrip())
    if arguments.json:
        print(json.dumps({"rows": rows, "exponents": {model: exponents(rows, model) for model in HYPER}}, indent=1))


if __name__ == "__main__":
    main()
