"""The quantiser: parity with the reference array, statistics in one or several processes, dead codes, figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hybrid_parity import Arrays, check_close, load
from torch import Tensor

from lrtasks.models.longvq import Codebook


def codebook_of(arrays: Arrays, name: str = "in_codebook", **options: Any) -> Codebook:
    """A codebook in double precision with the centres of an array."""
    centres = torch.from_numpy(arrays[name])
    codebook = Codebook(*centres.shape, std=1.0, **options).double()
    codebook.total.copy_(centres)
    codebook.updates += 1
    return codebook


def distance_to_nearest(x: Tensor, y: Tensor) -> Tensor:
    """From each row of ``x`` to the nearest row of ``y``, by differences, which lose no digits."""
    return (x.unsqueeze(1) - y).abs().amax(2).amin(1)


def test_quantiser_parity(data: Path) -> None:
    arrays = load(data, "vq_quantise")
    codebook = codebook_of(arrays, decay=float(arrays["in_eta"]), commitment=1.0)
    codebook.count.copy_(torch.from_numpy(arrays["in_count"]))
    codebook.total.copy_(torch.from_numpy(arrays["in_sum"]))
    if not np.allclose(codebook.centres().numpy(), arrays["in_codebook"]):
        pytest.fail("the array's codebook is not sum over count")
    keys, mask = torch.from_numpy(arrays["in_k"]).requires_grad_(), torch.from_numpy(~arrays["in_pad"])
    codes, quantised, _ = codebook(keys, mask)
    assert np.array_equal(codes.numpy(), arrays["out_code"])
    check_close(quantised, arrays["out_khat"], 1e-12)
    loss = codebook.extra_losses()["commitment"]
    check_close(loss, arrays["out_commit"], 1e-12)
    check_close(codebook.count, arrays["out_count_new"], 1e-12)
    check_close(codebook.total, arrays["out_sum_new"], 1e-12)
    check_close(codebook.centres(), arrays["out_codebook_new"], 1e-12)
    loss.backward()
    wanted = 2 * (keys - quantised) * mask.unsqueeze(-1) / mask.sum()
    assert keys.grad is not None and torch.allclose(keys.grad, wanted)


def test_statistics_do_not_move_in_evaluation() -> None:
    codebook = Codebook(4, 3, std=1.0).eval()
    before = {name: value.clone() for name, value in codebook.state_dict().items()}
    codebook(torch.randn(2, 9, 3))
    assert all(torch.equal(value, before[name]) for name, value in codebook.state_dict().items())


def test_the_first_batch_sets_the_centres_and_does_not_see_them() -> None:
    """Unpadded keys of the first batch become the centres; its own outputs come from the draws at the start."""
    codebook = Codebook(8, 3, std=1.0)
    before = codebook.centres()
    keys = torch.randn(2, 20, 3)
    mask = (torch.arange(20) < 10).expand(2, -1)
    codes, _, centres = codebook(keys, mask)
    assert torch.equal(centres, before)
    assert torch.equal(codes, codebook.assign(keys, before))
    assert len(codebook.centres().unique(dim=0)) == 8
    assert distance_to_nearest(codebook.centres(), keys[:, :10].flatten(0, 1)).max() < 1e-6


def test_a_codebook_larger_than_the_batch_works_and_says_so() -> None:
    codebook = Codebook(50, 3, std=1.0)
    keys = torch.randn(1, 20, 3)
    with pytest.warns(UserWarning, match="50 codes is larger than the 20 keys of a batch: codes will stay empty"):
        codebook(keys)
    assert torch.allclose(codebook(keys)[1], keys, atol=1e-6)
    assert codebook.diagnostics()["codebook_usage"] == 0.4


def test_one_code_is_the_mean() -> None:
    codebook = Codebook(1, 3, std=1.0, decay=0.0)
    keys = torch.randn(2, 20, 3)
    for _ in range(2):  # the first call starts the codebook
        codebook(keys)
    assert torch.allclose(codebook(keys)[1][0, 0], keys.mean((0, 1)), atol=1e-6)


def test_dead_codes() -> None:
    """Codes far from every key die."""
    torch.manual_seed(0)
    codebook = Codebook(6, 3, std=1.0, decay=0.5)
    codebook.total[:3] += 10.0
    codebook.total[3:] = -100.0
    codebook.updates += 1
    for _ in range(20):
        codebook(10 + torch.randn(2, 40, 3))
    assert codebook.diagnostics()["dead_codes"] == 3


def test_diagnostics_of_known_codes() -> None:
    codebook = codebook_of({"in_codebook": np.eye(4) * 2}).eval()
    keys = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]].unsqueeze(0)
    codebook(keys)
    assert codebook.diagnostics() == pytest.approx(
        {"codebook_usage": 0.5, "codebook_perplexity": 2.0, "dead_codes": 0.0, "quantisation_error": 1.0}
    )
    (portrait,) = codebook.portraits()
    assert portrait.kind == "bars" and len(portrait.labels) == 4
    assert portrait.series["share of keys"].tolist() == [0.5, 0.5, 0.0, 0.0]


def _process(rank: int, address: str, keys: Tensor, centres: Tensor, results: Any) -> None:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    torch.manual_seed(rank)
    mine = Codebook(5, 3, std=1.0, decay=0.9)  # its own draws, on each process others
    for _ in range(2):
        mine(keys[rank : rank + 1])
    given_centres = Codebook(5, 3, std=1.0, decay=0.9)
    given_centres.total.copy_(centres)
    given_centres.updates += 1
    given_centres(keys[rank : rank + 1])
    found = {"own": mine, "given": given_centres}
    torch.save({name: codebook.state_dict() for name, codebook in found.items()}, f"{results}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.e2e
def test_statistics_are_summed_over_processes(tmp_path: Path) -> None:
    """Two processes with one row each hold what one process with both rows holds; first centres are one process's."""
    keys, centres = torch.randn(2, 30, 3), torch.randn(5, 3)
    mp.spawn(_process, args=(f"file://{tmp_path}/rendezvous", keys, centres, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, states in first.items():
        assert all(torch.equal(value, second[name][buffer]) for buffer, value in states.items())
    alone = Codebook(5, 3, std=1.0, decay=0.9)
    alone.total.copy_(centres)
    alone.updates += 1
    alone(keys)
    assert torch.allclose(alone.count, first["given"]["count"], atol=1e-6)
    assert torch.allclose(alone.total, first["given"]["total"], atol=1e-6)
