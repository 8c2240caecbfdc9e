"""Tasks without torch: a linear predictor of Shift, fitted with plain NumPy: python generators_numpy.py

Shift asks for the signal and for copies of it, each later than the one before: a linear map of the whole input solves
it, and least squares finds that map once there are more samples than positions.
"""

import sys

import numpy as np

import lrtasks

task = lrtasks.make("shift", length=32, shifts=4)
train, test = task.batch(range(2000), seed=0, split="train"), task.batch(range(500), seed=0, split="test")


def flat(array: np.ndarray) -> np.ndarray:
    """One row per sample."""
    return array.reshape(len(array), -1).astype(np.float64)


def r2(prediction: np.ndarray) -> float:
    """Share of the variance of the test targets that the prediction explains."""
    return float(1 - np.mean((prediction - test.y) ** 2) / test.y.var())


weights, *_ = np.linalg.lstsq(flat(train.x), flat(train.y), rcond=None)
print(f"{task.name}: R² {r2((flat(test.x) @ weights).reshape(test.y.shape)):.3f} on samples never seen")
for name, baseline in task.baselines().items():
    baseline.fit([train])
    print(f"baseline {name}: R² {r2(baseline.predict(test)):.3f}")
assert "torch" not in sys.modules, "the generators need NumPy alone"
