"""Tasks as Hugging Face datasets, endless or stored: python hf_datasets.py FOLDER

The stored set is written to FOLDER, and read from there by `datasets` itself.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np

import lrtasks
from lrtasks.data import generate

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
task = lrtasks.make("recall", length=64)


def rows(start: int, stop: int, split: str) -> Iterator[dict[str, Any]]:
    """Samples ``start`` to ``stop - 1`` of a split.

    ``labels[t]`` belongs to position t. Causal language models of Transformers shift ``labels`` by one position:
    compute the loss from their logits instead.
    """
    for index in range(start, stop):
        batch = task.batch([index], seed=0, split=split)
        yield {"input_ids": batch.x[0], "labels": batch.y[0]}


# 1. an iterable dataset: nothing is stored, samples are drawn as they are asked for
stream = datasets.IterableDataset.from_generator(rows, gen_kwargs={"start": 0, "stop": 10**9, "split": "train"})
first = list(itertools.islice(stream, 3))
print(f"stream: {len(first)} samples with {', '.join(first[0])}")

# 2. a dataset in memory, with all that goes with it
validation = datasets.Dataset.from_list(list(rows(0, 100, "val"))).with_format("numpy")
print(f"in memory: {validation.num_rows} samples, tokens {validation[:]['input_ids'].shape}")

# 3. a stored set: any number of samples, with a manifest, read by its folder's name
generate(task, folder / "recall", samples=1000, workers=1)
stored = datasets.load_dataset(str(folder / "recall"), cache_dir=str(folder / "cache"))
print("stored: " + ", ".join(f"{split} {dataset.num_rows}" for split, dataset in stored.items()))

# a split's sample i is the same one everywhere
assert np.array_equal(first[0]["input_ids"], stored["train"][0]["input_ids"])
assert np.array_equal(validation[0]["labels"], stored["validation"][0]["labels"])
