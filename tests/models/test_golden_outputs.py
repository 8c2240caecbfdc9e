"""Golden outputs: a model whose outputs change for the same parameters and seed must raise its ``version``.

    python tests/models/test_golden_outputs.py

adds the outputs of new models and new versions to ``golden.json``; it never replaces an entry.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from lrtasks.models import registry
from lrtasks.spec import Spec

FILE = Path(__file__).with_name("golden.json")
SMALL = {"d_model": 8, "layers": 2, "d_state": 6, "heads": 2, "chunk": 5, "filter_width": 8, "codebook": 7}
OTHER = {"hybrid": {"layers": "gated-deltanet:1,attention:1"}}
LENGTH = 24


def key(name: str) -> str:
    return f"{name} {registry.get(name).version}"


def outputs(name: str) -> list[float]:
    """Some outputs of the first training call, and of evaluation after it, with padding in one of two rows."""
    cls = registry.get(name)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {field: value for field, value in SMALL.items() if field in cls.parameter_names()} | OTHER.get(
            name, {}
        )
        model = cls.make(**settings).build(Spec("token", LENGTH, 7), Spec("token", LENGTH, 3), causal=True).double()
        x = torch.arange(2 * LENGTH).view(2, LENGTH) ** 2 % 7
        mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [17]])
        torch.manual_seed(1)
        with torch.no_grad():
            both = [model.train()(x, mask), model.eval()(x, mask)]
    return [float(f"{value:.6g}") for y in both for value in y[:, 4:17:4].flatten().tolist()]


@pytest.mark.parametrize("name", registry.built_in())
def test_numbers_change_with_the_version_only(name: str) -> None:
    golden = json.loads(FILE.read_text())
    assert key(name) in golden, f"run python {Path(__file__).name} to add version {registry.get(name).version}"
    assert outputs(name) == pytest.approx(golden[key(name)], rel=1e-4, abs=1e-6), f"{name} needs a new version"


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known = {key(name): outputs(name) for name in registry.built_in()} | known
    lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
