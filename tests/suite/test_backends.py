"""Which backend the options choose."""

from __future__ import annotations

from typing import Any

import pytest

from lrtasks.errors import UsageError
from lrtasks.suite.backends import make_backend
from lrtasks.suite.backends.local import Local
from lrtasks.suite.backends.ray import Ray
from lrtasks.suite.backends.slurm import Slurm


def test_local_takes_its_number_of_jobs() -> None:
    assert make_backend("local") == Local()
    assert make_backend("local", jobs=3) == Local(3)


def test_ray_takes_its_address_and_what_each_run_needs() -> None:
    assert make_backend("ray") == Ray()
    assert make_backend("ray", address="10.0.0.1:6379", cpus=2, gpus=0.5) == Ray("10.0.0.1:6379", 2, 0.5)


def test_slurm_takes_the_same_by_names_of_its_own_and_all_others() -> None:
    assert make_backend("slurm") == Slurm()
    made = make_backend("slurm", jobs=4, cpus=2, gpus=1.0, slurm={"cluster": "local", "timeout_min": 60})
    parameters = {"array_parallelism": 4, "cpus_per_task": 2, "gpus_per_node": 1, "timeout_min": 60}
    assert made == Slurm(parameters, "local")
    assert isinstance(made, Slurm) and isinstance(made.parameters["gpus_per_node"], int)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rya", {}, "unknown backend 'rya'; did you mean 'ray'"),
        ("local", {"address": "auto"}, "--address has no meaning with --backend local; it belongs to ray"),
        ("local", {"gpus": 1}, "--gpus has no meaning with --backend local; it belongs to ray and slurm"),
        ("ray", {"slurm": {"partition": "long"}}, "--slurm has no meaning with --backend ray; it belongs to slurm"),
        ("local", {"jobs": 0}, "jobs must be at least 1, found 0"),
        ("slurm", {"jobs": 0}, "jobs must be at least 1, found 0"),
        ("ray", {"cpus": 0}, "cpus must be at least 1, found 0"),
        ("slurm", {"gpus": 0.5}, "gpus must be a whole number with --backend slurm, found 0.5"),
        ("slurm", {"cpus": 2, "slurm": {"cpus_per_task": 4}}, "--cpus and --slurm cpus_per_task=4 say the same"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_backend(name, **options)
