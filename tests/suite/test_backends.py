"""Which backend the options choose."""

from __future__ import annotations

from typing import Any

import pytest

from lrtasks.errors import UsageError
from lrtasks.suite.backends import make_backend
from lrtasks.suite.backends.local import Local
from lrtasks.suite.backends.ray import Ray
from lrtasks.suite.backends.slurm import Slurm


def test_options_are_the_parameters_of_the_backend() -> None:
    assert make_backend("local", {"jobs": 3}) == Local(jobs=3)
    assert make_backend("ray", {"address": "10.0.0.1:6379", "cpus": 2, "gpus": 0.5}) == Ray("10.0.0.1:6379", 2, 0.5)
    assert make_backend("slurm", {"jobs": 4, "slurm": ("timeout_min=60",)}) == Slurm(jobs=4, slurm=("timeout_min=60",))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rya", {}, "unknown backend 'rya'; did you mean 'ray'"),
        ("ray", {"slurm": ("partition=long",)}, "--slurm has no meaning with --backend ray; it belongs to slurm"),
        ("local", {"jobs": 0}, "jobs must be at least 1"),
        ("ray", {"gpus": 1.5}, "gpus must be a whole number or a fraction of one, found 1.5"),
        ("ray", {"cpus": 0}, "cpus must be at least 1, found 0"),
        ("slurm", {"jobs": 2, "slurm": ("array_parallelism=4",)}, "array_parallelism is given twice: .* by --slurm"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_backend(name, options)
