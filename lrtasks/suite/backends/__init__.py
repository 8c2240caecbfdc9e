"""Places where the runs of a suite are carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lrtasks.errors import UsageError, unknown

if TYPE_CHECKING:
    from lrtasks.suite.jobs import Backend

OPTIONS = {
    "local": ("jobs",),
    "ray": ("address", "cpus", "gpus"),
    "slurm": ("jobs", "cpus", "gpus", "slurm"),
}
"""The backends, and which options each has."""


def make_backend(
    name: str,
    *,
    jobs: int | None = None,
    address: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    slurm: Mapping[str, Any] | None = None,
) -> Backend:
    """Build a backend; an option that is ``None`` keeps its default.

    Args:
        name: ``"local"``, ``"ray"`` or ``"slurm"``.
        jobs: runs at a time.
        address: of the Ray cluster.
        cpus: processor cores of each run.
        gpus: GPUs of each run.
        slurm: more parameters of the Slurm jobs, and ``cluster``; see :class:`lrtasks.suite.backends.slurm.Slurm`.

    Raises:
        UsageError: for an unknown name, an option that the backend does not have, or a value that it cannot take.
    """
    if name not in OPTIONS:
        raise unknown("backend", name, OPTIONS)
    options = {"jobs": jobs, "address": address, "cpus": cpus, "gpus": gpus, "slurm": slurm or None}
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in OPTIONS[name]:
            owners = " and ".join(backend for backend, known in OPTIONS.items() if option in known)
            raise UsageError(f"--{option} has no meaning with --backend {name}; it belongs to {owners}")
    if name == "ray":
        from lrtasks.suite.backends.ray import Ray

        return Ray(**given)
    if name == "slurm":
        return _slurm(**given)
    from lrtasks.suite.backends.local import Local

    return Local(**given)


def _slurm(slurm: Mapping[str, Any] | None = None, gpus: float | None = None, **given: Any) -> Backend:
    """The options that other backends share are parameters of Slurm jobs by names of their own."""
    from lrtasks.suite.backends.slurm import Slurm

    if gpus is not None:
        if gpus < 0 or gpus % 1:
            raise UsageError(f"gpus must be a whole number with --backend slurm, found {gpus:g}")
        given["gpus"] = int(gpus)
    for option in ("jobs", "cpus"):
        if option in given and given[option] < 1:
            raise UsageError(f"{option} must be at least 1, found {given[option]}")
    names = {"jobs": "array_parallelism", "cpus": "cpus_per_task", "gpus": "gpus_per_node"}
    parameters = {names[option]: value for option, value in given.items()}
    more = dict(slurm or {})
    cluster = more.pop("cluster", "slurm")
    for option, parameter in names.items():
        if option in given and parameter in more:
            raise UsageError(f"--{option} and --slurm {parameter}={more[parameter]} say the same; give one of them")
    return Slurm({**parameters, **more}, cluster)
