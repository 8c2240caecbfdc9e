"""Compare Pathfinder's variant `paper` with the DLR paper's generator in every stored statistic of that generator.

    python benchmarks/pathfinder_fidelity.py                          # 128, 1,000 images
    python benchmarks/pathfinder_fidelity.py --res 256 --images 500

The reference values come from 150 images (30 at 512) of the paper's public generator, stored in
tests/data/pathfinder_stats.json. Columns: the mean of this package and of the paper, their difference in standard
errors of both samples, and the largest allowed difference (four standard errors or 3 %, whichever is larger); a larger
difference is marked. Standard errors treat all values as independent, but several values of one image are correlated:
steps, turns and tips of one path. Statistics without a reference value are listed below.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "generators"))

from pathfinder_statistics import compare, measure, reference

from lrtasks.generators import make


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--res", type=int, choices=(128, 256, 512), default=128)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    values = measure(make("pathfinder", res=options.res).settings, options.images, options.seed)
    expected = reference(options.res)
    found = compare(values, expected)
    print(f"{'statistic':40} {'ours':>11} {'theirs':>11} {'errors':>7} {'allowed':>9}")
    for name, ours, theirs, allowed, count in found:
        known = expected[name]
        error = math.hypot(np.std(values[name]) / math.sqrt(count), known["std"] / math.sqrt(known["n"]))
        sign = "" if abs(ours - theirs) <= allowed else "  DIFFERS"
        distance = (ours - theirs) / error if error else 0.0
        print(f"{name:40} {ours:11.4f} {theirs:11.4f} {distance:7.2f} {allowed:9.4f}{sign}")
    for name in sorted(set(values) - set(expected)):
        print(f"{name:40} {np.mean(values[name]):11.4f}")
    differing = sum(not comparison.holds for comparison in found)
    print(f"{differing} of {len(found)} means differ, {options.images} images of {options.res} x {options.res}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
