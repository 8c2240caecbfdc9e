"""Targets of the whole sequence: where the output is read, with one value or several values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lrtasks.check.model import check_model
from lrtasks.models import build
from lrtasks.models.base import Backbone
from lrtasks.spec import Spec

LENGTH = 12


class Pass(nn.Module):
    """A block that gives its input back."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


@pytest.mark.parametrize("causal", [True, False])
def test_several_values_come_from_the_last_valid_position_or_from_the_mean(causal: bool) -> None:
    torch.manual_seed(0)
    model = Backbone(Spec("token", LENGTH, 7), Spec("token", 5, 3, pooled=True), 8, [Pass()], causal=causal)
    x = torch.randint(7, (4, LENGTH))
    position = torch.arange(LENGTH)
    mask = torch.stack([position >= 0, position < 7, position >= 7, position == 3])
    hidden = model.encoder(x)
    for row, last in enumerate((11, 6, 11, 3)):
        read = hidden[row, last] if causal else hidden[row][mask[row]].mean(0)
        expected = model.decoder(read).view(5, 3)
        torch.testing.assert_close(model(x, mask)[row], expected)
    assert model(x).shape == (4, 5, 3)
    torch.testing.assert_close(model(x[:1]), model(x, mask)[:1])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("target", [Spec("token", 5, 3, pooled=True), Spec("token", 40, 3, pooled=True)])
@pytest.mark.parametrize("name", ["dlr", "transformer"])
def test_models_keep_their_contract_with_several_values(name: str, target: Spec, causal: bool) -> None:
    """Padding, rows, streaming; the second target is as long as the input, but read from one position."""
    check_model(name, input=Spec("token", 40, 7), target=target, causal=causal, d_model=8, layers=2)


def test_a_stream_gives_the_values_of_the_sequence_so_far() -> None:
    model = build("transformer", Spec("token", LENGTH, 7), Spec("real", 3, 2, pooled=True), d_model=8).eval()
    x = torch.randint(7, (2, LENGTH))
    state = model.initial_state(2)
    with torch.no_grad():
        for t in range(LENGTH):
            y, state = model.step(x[:, t], state)
        torch.testing.assert_close(y.view(2, 3, 2), model(x))
