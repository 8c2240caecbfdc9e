"""Measure the time of one Pathfinder image with its target, PNG encoding included, on one core, by part.

    python benchmarks/pathfinder_speed.py                              # 64, 128, 256, 512; 300 images each
    python benchmarks/pathfinder_speed.py --res 256 --images 1000 --variant clean
    python benchmarks/pathfinder_speed.py --res 64 --plain 20          # against the same source as plain Python

The script prints CPU milliseconds of one thread: the mean with its standard error, the median and the slowest, then the
mean of each part: placement (search for the paths), drawing, and PNG (image and label map, as `lrtasks generate` writes
them). The times have a heavy tail, since paths that do not fit are rejected. The column ``batch`` is the time per
sample of ``task.batch`` with 16 samples, without PNG. The last column is the time of the tables and patches, which are
made once per process. ``--plain`` makes the first images again in plain Python and prints the
ratio of the mean times over these images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

from lrtasks.data.columns import encode_labels, encode_png
from lrtasks.generators import make
from lrtasks.generators.pathfinder import RESOLUTIONS, image
from lrtasks.generators.pathfinder.tables import kit

PARTS = ("placement", "drawing", "PNG")
BATCH = 16


def seconds(res: int, variant: str, images: int) -> tuple[float, np.ndarray]:
    """Return the CPU seconds of the preparation, and of each part of each image, ``(images, 3)``."""
    settings = make("pathfinder", res=res, variant=variant).settings
    image.lay_out(settings, np.random.default_rng(1))  # compiles the code, or loads compiled code
    kit.cache_clear()
    start = time.process_time()
    for margin in settings.gap_margins:
        kit(settings, margin)
    preparation = time.process_time() - start
    rng = np.random.default_rng(0)
    taken = np.zeros((images, len(PARTS)))
    for row in taken:
        times = [time.process_time()]
        layout = image.lay_out(settings, rng)
        times.append(time.process_time())
        picture = image.draw(layout)
        times.append(time.process_time())
        encode_png(picture.image)
        encode_labels(picture.target.astype(np.int64), 3)
        times.append(time.process_time())
        row[:] = np.diff(times)
    return preparation, taken


def batch_mean(res: int, variant: str, images: int) -> float:
    """Return the mean CPU seconds per sample of batches."""
    task = make("pathfinder", res=res, variant=variant)
    task.batch(range(BATCH))
    start, batches = time.process_time(), -(-images // BATCH)
    for number in range(batches):
        task.batch(range(BATCH * number, BATCH * (number + 1)))
    return (time.process_time() - start) / (batches * BATCH)


def plain_mean(res: int, variant: str, images: int) -> float:
    """Return the mean seconds of the same images in a process without numba's compilation."""
    command = [sys.executable, __file__, "--res", str(res), "--variant", variant, "--images", str(images), "--json"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(np.mean(json.loads(done.stdout)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--res", type=int, nargs="+", default=RESOLUTIONS)
    parser.add_argument("--variant", choices=("paper", "clean"), default="paper")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--plain", type=int, default=0, metavar="IMAGES")
    parser.add_argument("--json", action="store_true", help="print the seconds of each image and nothing else")
    options = parser.parse_args()
    if not options.json:
        columns = ("mean", "+-", "median", "slowest", *PARTS, "batch", "once")
        print(f"{'ms of CPU':>12}" + "".join(f"{name:>11}" for name in columns))
    for res in options.res:
        preparation, taken = seconds(res, options.variant, options.images)
        total = taken.sum(axis=1)
        if options.json:
            print(json.dumps(total.tolist()))
            continue
        figures = [total.mean(), total.std() / np.sqrt(len(total)), np.median(total), total.max()]
        figures += [*taken.mean(axis=0), batch_mean(res, options.variant, options.images), preparation]
        print(f"{options.variant + ' ' + str(res):>12}" + "".join(f"{1000 * value:11.2f}" for value in figures))
        if options.plain:
            plain = plain_mean(res, options.variant, options.plain)
            ratio = plain / total[: options.plain].mean()
            print(f"{'plain':>12}{1000 * plain:11.2f}   {ratio:.0f} times as long, over {options.plain} images")


if __name__ == "__main__":
    main()
