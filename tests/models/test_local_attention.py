"""Local attention: parity with the reference's arrays, the plain definition, memory linear in the length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attention_reference import PRECISIONS, check_attention_parity, local_visible, plain_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from lrtasks.models import build
from lrtasks.models.ops.attention import MultiHeadAttention, attend_local
from lrtasks.spec import Spec

FILES = ["causal", "causal_short", "noncausal", "noncausal_ragged"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("file", FILES)
def test_parity(data: Path, file: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = dict(np.load(data / "dlr" / f"local_attention_{file}.npz"))
    causal, chunk, length = bool(arrays["causal"]), int(arrays["chunk"]), int(arrays["L"])
    assert np.array_equal(local_visible(length, chunk, causal), arrays["visible"])
    attention = MultiHeadAttention(16, 4, causal=causal, learned_scale=True, chunk=chunk)
    check_attention_parity(arrays, attention, attention, precision, monkeypatch)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("length", [1, 4, 5, 8, 9, 12, 13, 16, 23])
def test_is_the_plain_definition(causal: bool, padded: bool, length: int) -> None:
    """With chunks of 4: one chunk, two, many, ragged ones."""
    q, k, v = (torch.randn(2, 2, length, 2, dtype=torch.float64) for _ in range(3))
    visible, valid = local_visible(length, 4, causal).expand(2, 1, -1, -1), None
    if padded:
        valid = torch.rand(2, length) < 0.6
        visible = visible & valid[:, None, None]
    expected = plain_attention(q, k, v, visible)
    found = attend_local(q, k, v, chunk=4, causal=causal, valid=valid)
    assert found.shape == expected.shape
    assert found.isfinite().all()
    seeing = visible.any(-1)[..., None].expand_as(expected)
    assert torch.allclose(found[seeing], expected[seeing], rtol=0, atol=1e-12)


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("causal", [True, False])
def test_memory_is_linear_in_the_length(causal: bool) -> None:
    """At 65,536 positions, forward and backward: no tensor beyond scores of a query with its 2 or 3 chunks."""
    chunk, heads, width, length = 64, 2, 4, 2**16
    attention = MultiHeadAttention(heads * width, heads, causal=causal, chunk=chunk)
    x = torch.randn(1, length, heads * width, requires_grad=True)
    with Largest() as largest:
        attention(x).sum().backward()
    assert x.grad is not None and largest.numel <= heads * length * 3 * chunk


def test_largest_sees_the_scores_of_full_attention() -> None:
    """The recorder above would notice a table of all pairs."""
    q = torch.randn(1, 100, 4)
    with Largest() as largest:
        torch.softmax(q @ q.transpose(1, 2), -1)
    assert largest.numel == 100**2


def test_reaches_as_far_as_its_chunks() -> None:
    """One layer: the last position of the third chunk sees the second chunk, not the first."""
    spec = Spec("real", 12, 1)
    model = build("local-attention", spec, spec, d_model=8, heads=2, chunk=4)
    x = torch.randn(1, 12, 1, requires_grad=True)
    model(x)[0, 11].sum().backward()
    assert x.grad is not None
    assert (x.grad[0, :, 0] != 0).tolist() == [False] * 4 + [True] * 8
