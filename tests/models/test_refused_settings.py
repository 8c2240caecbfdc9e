"""Settings that a model refuses, beyond the limits of single parameters, each in one line."""

from __future__ import annotations

from typing import Any

import pytest

from lrtasks.errors import UsageError
from lrtasks.models import build, names, registry
from lrtasks.models.recurrent import RecurrentConfig
from lrtasks.spec import Spec

SPEC = Spec("real", 24, 2)
RECURRENT = [name for name in names() if issubclass(registry.get(name), RecurrentConfig)]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dlr", {"dt_min": 0.2, "dt_max": 0.1}, "dt_min must be at most dt_max"),
    ("dlr", {"eigenvalues": "real", "kernel": "prod"}, "kernel must be real or sum with eigenvalues='real'"),
    ("dlr", {"kernel_length": 25}, r"kernel_length must be at most the sequence length \(24\), found 25"),
    ("dss", {"dt_min": 0.2, "dt_max": 0.1}, "dt_min must be at most dt_max"),
    ("s4d", {"dt_min": 0.2, "dt_max": 0.1}, "dt_min must be at most dt_max"),
    ("s4d", {"d_state": 7}, "d_state must be even"),
    ("s4d", {"start": "legs", "d_state": 8192}, "d_state must be at most 4096 with start='legs'"),
    ("sgconv", {"alpha_min": 0.9, "alpha_max": 0.5}, "alpha_min must be at most alpha_max"),
    ("hyena", {"filter_features": 4}, "filter_features must be odd, found 4"),
    ("hyena", {"canon": "B"}, "some of the letters ACD"),
    ("focus", {"smooth": 4}, "smooth must be odd, found 4"),
    ("focus", {"smooth": 2**63 - 1}, "smooth must be at least 1 and at most 16,777,216"),
    ("transformer", {"window": 10**30}, "window must be at least 1 and at most 16,777,216"),
    ("hybrid", {"layers": "window:1", "window.window": 10**30}, "window must be at least 1 and at most 16,777,216"),
    ("focus", {"bins": 1}, "bins must be at least 2, found 1"),
    *(
        (name, hyper, message)
        for name in ("focus", "focus-h")
        for hyper, message in (
            ({"bins": 25}, r"bins must be at most the sequence length \(24\), found 25"),
            ({"conjugate": False}, "conjugate has no meaning with filtering='reset'"),
            ({"norm": "batch"}, "batch norm is not causal in training"),
        )
    ),
    *(
        (name, hyper, message)
        for name in ("mega", "mega-chunk")
        for hyper, message in (
            ({"d_z": 5, "bias": "rotary"}, "d_z must be even with bias='rotary', found 5"),
            ({"sinusoids": True, "d_model": 7}, "d_model must be even with sinusoids, found 7"),
            ({"norm": "batch"}, "batch norm is not causal in training"),
        )
    ),
    ("seqboat", {"window": 26}, r"window must be none or at most the sequence length \(24\), found 26"),
    ("seqboat", {"window": 8, "scope": "full"}, "window must be none with scope='full', found 8"),
    ("seqboat", {"window": 5, "causal": False}, "even window, found 5"),
    ("seqboat", {"d_z": 5, "bias": "rotary"}, "d_z must be even, found 5"),
    ("seqboat", {"ssm": "s4d", "d_state": 5}, "d_state must be even"),
    ("seqboat", {"sinusoids": True, "d_model": 7}, "d_model must be even with sinusoids, found 7"),
    ("seqboat", {"norm": "batch"}, "batch norm is not causal in training"),
    ("longvq", {"window": 41}, r"window must be none or at most the sequence length \(24\), found 41"),
    ("longvq", {"ssm": "s4d-lin", "d_state": 5}, "d_state must be even with ssm='s4d-lin'"),
    ("longvq", {"norm": "batch"}, "batch norm is not causal in training"),
    ("attention", {"d_model": 12, "heads": 4}, r"multiple of 2 \* heads.*found d_model 12 with 4 heads"),
    ("attention", {"d_model": 12, "heads": 5}, r"multiple of 2 \* heads.*found d_model 12 with 5 heads"),
    ("transformer", {"d_model": 10, "heads": 4, "positions": "nope"}, "multiple of heads"),
    ("transformer", {"canon": "AE"}, "some of the letters ABCD"),
    ("transformer", {"canon": "AA"}, "at most once"),
    ("mamba", {"canon": "C"}, "some of the letters A,"),
    ("gla", {"canon": "D", "mlp": False}, "some of the letters AB,"),
    ("rwkv7", {"canon": "D", "channel_mixing": True}, "some of the letters AC,"),
    ("slstm", {"d_model": 8, "heads": 8}, r"heads must be at most d_model / 2 \(4\), found 8"),
    ("mlstm", {"d_model": 8, "heads": 16}, r"heads must be at most the inner width / 2 \(8\), found 16"),
    ("mlstm", {"d_model": 6, "heads": 3, "expand": 1.0, "round_up": 6}, "inner width must be a multiple of 4, found 6"),
    ("kda", {"lower_bound": 0.0}, "lower_bound must be below 0, found 0"),
    ("lru", {"r_min": 0.9, "r_max": 0.8}, r"r_min must be below r_max \(0.8\), found 0.9"),
    ("s5", {"d_state": 7}, "d_state must be even .*, found 7"),
    ("transformer", {"canon": "B", "conv": True}, "take one"),
    ("gla", {"canon": "B", "conv": True}, "take one"),
    ("transformer", {"canon": "A", "causal": False}, "causal model"),
    ("transformer", {"conv": True, "causal": False}, "causal model"),
    ("gla", {"d_model": 24, "heads": 4, "decay": "fixed"}, "must be even with decay='fixed', found 3"),
    *((name, {"expand_k": 1e-6}, "at least 1 wide, found keys 0") for name in ("gla", "retnet")),
    ("gla", {"expand_v": 1e-6}, "at least 1 wide, found .* values 0"),
    ("rwkv7", {"d_model": 4, "heads": 4}, "heads must be at most d_model / 2"),
    *(
        (name, {"d_model": 64, "heads": 5}, r"heads must divide .* \(\d+\) without a remainder, found 5")
        for name in RECURRENT
        if "heads" in registry.get(name).parameter_names()
    ),
    *((name, {"causal": False}, f"{name} is a causal model") for name in ("hyena", *RECURRENT)),
]


@pytest.mark.parametrize(("name", "hyper", "message"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused_in_one_line(name: str, hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        build(name, SPEC, SPEC, **hyper)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", names())
def test_a_bidirectional_model_has_no_streaming_form(name: str) -> None:
    try:
        model = build(name, SPEC, SPEC, causal=False, **({"layers": "attention:1"} if name == "hybrid" else {}))
    except UsageError as error:
        pytest.skip(str(error))
    with pytest.raises(UsageError, match="bidirectional"):
        model.initial_state(1)
