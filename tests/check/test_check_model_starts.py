"""check_model on models as people bring them: FFT convolutions, starts at zero, complex values, compiled, lazy ones."""

from __future__ import annotations

import pytest
import torch
from broken_models import SIGNAL, TARGET, Conv, IgnoresMask
from torch import Tensor, nn

from lrtasks.check import problems_of
from lrtasks.check.model import check_model
from lrtasks.errors import UsageError
from lrtasks.models.base import diagnostics, extra_losses, parameter_options, takes_mask
from lrtasks.spec import Spec

LONG = Spec("real", 256, 1)


class Fourier(nn.Module):
    """A causal convolution by FFT whose kernel starts at zero."""

    def __init__(self, kernel: Tensor) -> None:
        super().__init__()
        self.kernel = nn.Parameter(kernel)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        spectra = torch.fft.rfft(x, 2 * length, dim=1) * torch.fft.rfft(self.kernel, 2 * length)[:, None]
        return torch.fft.irfft(spectra, dim=1)[:, :length]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["late", "delay", "rising"])
def test_rounding_of_an_fft_is_no_leak(kind: str, dtype: torch.dtype) -> None:
    t = torch.arange(256.0)
    kernel = 100 * {"late": t / 50 * torch.exp(-t / 50), "delay": (t == 1).float(), "rising": t / 256}[kind]
    assert problems_of(check_model, Fourier(kernel), input=LONG, target=LONG, dtype=dtype) == []
    ahead = torch.cat([kernel[1:], kernel[:1]])
    ahead[-1] = 1.0  # a circular convolution's look at the next position

    class Circular(Fourier):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(self.kernel)[:, None], n=256, dim=1)

    (problem,) = problems_of(check_model, Circular(ahead), input=LONG, target=LONG, dtype=dtype)
    assert problem.startswith("not causal")


class Ahead(nn.Module):
    """A model that looks ahead behind what starts at zero."""

    def __init__(self, start: str) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
        self.head, self.skip = nn.Linear(8, 2), nn.Linear(3, 2)
        self.gate = nn.Parameter(torch.tensor(0.0 if start == "gate" else 1.0))
        if start == "head":
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        late = self.head(self.rnn(x)[0])
        # equal values in all channels would hide the head, too
        y: Tensor = self.skip(x) + self.gate * (late - late.mean(-1, keepdim=True))
        return y


@pytest.mark.parametrize("start", ["head", "gate"])
def test_a_leak_behind_what_starts_at_zero_is_found(start: str) -> None:
    model = Ahead(start)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (problem,) = problems_of(check_model, model, input=SIGNAL, target=TARGET)
    assert problem.startswith("not causal")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "a copy was checked"
    assert problems_of(check_model, model, input=SIGNAL, target=TARGET, causal=False) == []
    closed = Ahead("gate")
    closed.gate.requires_grad_(False)
    assert problems_of(check_model, closed, input=SIGNAL, target=TARGET) == [], "a frozen gate stays closed"


class Complex(nn.Module):
    """A linear recurrence with complex eigenvalues, unrolled; ``leak`` adds the future where they are complex."""

    def __init__(self, leak: bool = False) -> None:
        super().__init__()
        self.enter = nn.Parameter(torch.randn(3, 4, dtype=torch.cfloat))
        self.register_buffer("leave", torch.randn(4, 2, dtype=torch.cfloat))
        self.register_buffer("exact", torch.ones(1, dtype=torch.float64))
        self.leak = leak

    def forward(self, x: Tensor) -> Tensor:
        assert self.exact.dtype == torch.float64
        states = (x.to(self.enter.dtype) @ self.enter).cumsum(1) @ self.leave
        y = states.imag
        return y + self.enter.imag.sum() * x.flip(1)[..., :2] if self.leak else y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_parameters_stay_complex(dtype: torch.dtype) -> None:
    assert problems_of(check_model, Complex(), input=SIGNAL, target=TARGET, dtype=dtype) == []
    (problem,) = problems_of(check_model, lambda *_: Complex(leak=True), input=SIGNAL, target=TARGET, dtype=dtype)
    assert problem.startswith("not causal")


def test_a_compiled_model_takes_the_mask_that_it_took() -> None:
    assert takes_mask(IgnoresMask())
    assert takes_mask(torch.compile(IgnoresMask(), backend="eager"))  # type: ignore[arg-type]
    assert not takes_mask(torch.compile(Conv(), backend="eager"))  # type: ignore[arg-type]


def test_lazy_modules_must_have_met_an_input() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(UsageError, match=r"0\.weight, 0\.bias of the model has no shape yet; call the model once"):
        problems_of(check_model, model, input=SIGNAL, target=TARGET)
    model(torch.zeros(SIGNAL.shape(1)))
    assert problems_of(check_model, model, input=SIGNAL, target=TARGET) == []


def test_a_state_that_is_carried_from_step_to_step_is_found() -> None:
    class Carrying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 2, batch_first=True)
            self.state: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            y, state = self.rnn(x, self.state if self.training else None)
            if self.training:
                self.state = state
            return torch.as_tensor(y)

    (problem,) = problems_of(check_model, Carrying(), input=SIGNAL, target=TARGET)
    assert problem.startswith(
        "the backward pass fails after the first step; forward must keep nothing of an earlier one"
    )


def test_a_model_without_parameters_is_named() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[..., :2]

    assert problems_of(check_model, Fixed(), input=SIGNAL, target=TARGET) == ["it has no parameters to train"]


class Extra(nn.Module):
    """A model with a loss of its own, an option of a parameter and a diagnostic."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x

    def extra_losses(self) -> dict[str, torch.Tensor]:
        return {"one": self.scale}

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return {"scale": {"lr": 0.5}}

    def diagnostics(self) -> dict[str, float]:
        return {"scale": 1.0}


def test_a_compiled_model_reports_once() -> None:
    model = torch.compile(Extra(), backend="eager")
    total = extra_losses(model, torch.device("cpu"))  # type: ignore[arg-type]
    assert isinstance(total, torch.Tensor) and total.item() == 1
    assert list(parameter_options(model).values()) == [{"lr": 0.5}]  # type: ignore[arg-type]
    assert list(diagnostics(model).values()) == [{"scale": 1.0}]  # type: ignore[arg-type]
