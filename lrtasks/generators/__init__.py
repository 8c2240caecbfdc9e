"""Procedural generators of the tasks. They return NumPy arrays without PyTorch, for JAX, TensorFlow or plain Python.

>>> task = make("shift", length=4096)
>>> batch = task.batch(range(16), seed=0, split="train")
>>> batch.x.shape, batch.y.shape
((16, 4096, 3), (16, 4096, 8))
"""

from lrtasks.generators.base import Task, make, names, registry
from lrtasks.spec import Batch, Sample, Spec

__all__ = ["Batch", "Sample", "Spec", "Task", "make", "names", "registry"]
