"""What all long convolutions share: streaming, sizes of states, and options of the kernel's parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity import check_streaming_of

from lrtasks.models import build, registry
from lrtasks.models.base import offered, state_bytes
from lrtasks.spec import Spec

SPEC = Spec("real", 60, 2)
STEPS = {"dt_min": 1e-3, "dt_max": 1e-1}
STREAMED: list[tuple[str, dict[str, Any]]] = [
    ("dlr", STEPS),
    ("dlr", {**STEPS, "kernel": "imag"}),
    ("dlr", {**STEPS, "kernel": "sum", "real_weight": True}),
    ("dlr", {**STEPS, "kernel": "prod"}),
    ("dlr", {**STEPS, "kernel": "real-prod"}),
    ("dlr", {**STEPS, "eigenvalues": "real"}),
    ("dlr", {**STEPS, "eigenvalues": "imag"}),
    ("dlr", {**STEPS, "kernel_length": 7}),
    ("dlr", {**STEPS, "kernel_length": 60, "kernel": "prod"}),
    ("dlr", {**STEPS, "glu": True, "prenorm": True, "norm": "scalar"}),
    ("dss", {}),
    ("dss", {"scale": False}),
    ("s4d", {}),
    ("s4d", {"start": "legs"}),
    ("s4d", {"glu": False}),
    ("sgconv", {"d_state": 8}),
    ("sgconv", {"d_state": 3, "glu": True}),
    ("sgconv", {"d_state": 100}),
]


@pytest.mark.parametrize(("name", "hyper"), STREAMED, ids=str)
def test_streaming_equals_convolution(name: str, hyper: dict[str, Any]) -> None:
    check_streaming_of(name, **hyper)


@pytest.mark.parametrize(
    ("name", "hyper", "size"),
    [
        ("dlr", {}, 2 * 5 * 12 * 16),  # layers, channels, states, bytes of a complex128
        ("dlr", {"eigenvalues": "real"}, 2 * 5 * 12 * 8),
        ("dlr", {"kernel_length": 7}, 2 * 5 * 7 * 4),  # seven float32 inputs
        ("dlr", {"kernel": "prod"}, 2 * 5 * 60 * 4),
        ("dlr", {"causal": False}, None),
        ("dss", {}, 2 * 5 * 12 * 16),
        ("s4d", {}, 2 * 5 * 6 * 16),  # one number per pair of conjugate states
    ],
    ids=str,
)
def test_state_holds_its_size_in_bytes(name: str, hyper: dict[str, Any], size: int | None) -> None:
    assert state_bytes(build(name, SPEC, SPEC, layers=2, d_model=5, d_state=12, **hyper)) == size


HELD, SLOW = {"weight_decay": 0.0}, {"weight_decay": 0.0, "lr": 1e-3}
HIDDEN = tuple(f"hidden.{number}.{part}" for number in range(3) for part in ("weight", "bias"))
PLACES = {"hyena": "mixer.filter", "focus": "summary.conv.kernel", "focus-h": "layers.0.coefficients"}


@pytest.mark.parametrize(
    ("name", "hyper", "wanted"),
    [
        ("dlr", {}, dict.fromkeys(("W", "p", "q.offset"), HELD)),
        ("dss", {"kernel_lr": None}, dict.fromkeys(("log_dt", "a", "b.offset", "W"), HELD)),
        ("dss", {"kernel_lr": 1e-3}, dict.fromkeys(("log_dt", "a", "b.offset"), SLOW) | {"W": HELD}),
        ("s4d", {}, dict.fromkeys(("log_dt", "r", "omega.offset"), SLOW)),
        ("sgconv", {}, dict.fromkeys(("w", "alpha"), HELD)),
        ("hyena", {"layers": 1}, dict.fromkeys(("frequency", "out.weight", *HIDDEN), HELD)),
        ("focus", {"layers": 1, "chunk": 4}, {"taps": SLOW}),
        ("focus-h", {"layers": 1, "chunk": 4}, {"raw": HELD}),
    ],
    ids=str,
)
def test_parameters_of_the_kernel_have_their_own_options(name: str, hyper: dict[str, Any], wanted: Any) -> None:
    sizes = {"d_state": 8} if "d_state" in registry.get(name).parameter_names() else {}
    model = build(name, SPEC, SPEC, d_model=4, **sizes, **hyper)
    options = {
        f"{module}.{key}": option
        for module, method in offered(model, "parameter_options")
        for key, option in method().items()
    }
    assert options == {f"blocks.0.{PLACES.get(name, 'mixer.kernel')}.{key}": option for key, option in wanted.items()}
    assert set(options) <= {key for key, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("seqboat", {"kernel_length": 32, "max_positions": 16, "window": 16, "ssm": "s4d"}),
        ("mega", {"kernel_length": 48, "bias": "rotary"}),
        ("longvq", {"kernel_length": 32, "window": 16}),
    ],
    ids=str,
)
def test_a_cut_kernel_stays_cut_at_lengths_beyond_the_built_one(name: str, hyper: dict[str, Any]) -> None:
    """Longer tests use the model as it was built, so its kernel must not grow with the input."""
    torch.manual_seed(0)
    built, longer = (
        build(name, Spec("real", length, 3), Spec("real", length, 2), d_model=16, layers=1, **hyper).double().eval()
        for length in (32, 128)
    )
    longer.load_state_dict(built.state_dict())
    built.target = longer.target
    x = torch.randn(2, 128, 3, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(built(x), longer(x), rtol=0, atol=1e-9)
