"""Compare exponential kernels and whole training steps with their plain definition: time, peak memory, error.

    python benchmarks/kernels.py                                        # DLR kernel, L = 2^10 .. 2^20
    python benchmarks/kernels.py --channels 128 --lengths 4096          # one size
    python benchmarks/kernels.py --model dss --states 1024 --channels 128 --lengths 4096
    python benchmarks/kernels.py --step --batch 4 --lengths 65536       # forward, backward and AdamW of one layer

Forms: ``package`` is the form that the package chooses. ``plain`` is the definition, with one complex table of N × L
exponentials (per channel for DSS) and one complex product, in float32. ``keops`` is the same sum by PyKeOps, if
installed. Each measurement runs in its own process. Memory is the peak of the process minus its memory before the first
call (Linux). The error is the largest difference from float64 at sampled positions (the last included), divided by the
largest value.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import lrtasks.models.dlr
import lrtasks.models.s4d
from lrtasks.bench.measure import PeakMemory, run_in_process
from lrtasks.models.dlr import DLR, DLRKernel
from lrtasks.models.ops.exponentials import exp_kernel
from lrtasks.models.s4d import DSS, DSSKernel
from lrtasks.spec import Spec

FORMS = ("package", "plain", "keops")
ENOUGH = 20.0  # a measurement is not repeated after this number of seconds
TIME_LIMIT = 86_400.0


def plain_kernel(weight: Tensor, rate: Tensor | None, freq: Tensor | None, length: int) -> Tensor:
    """Compute the definition Re sum_n W[..., n] exp(Λ_n l) from a table of all exponentials, in weight's precision."""
    assert rate is not None
    assert freq is not None
    eigenvalue = torch.complex(rate, freq).to(weight.dtype)
    table = torch.exp(eigenvalue.unsqueeze(-1) * torch.arange(length, device=weight.device))
    return (weight @ table).real


def keops_kernel(weight: Tensor, rate: Tensor | None, freq: Tensor | None, length: int) -> Tensor:
    """Compute the same sum by a PyKeOps reduction, which holds no table."""
    from pykeops.torch import Genred

    assert rate is not None
    assert freq is not None
    eigenvalue = torch.view_as_real(torch.complex(rate, freq).to(weight.dtype))
    position = torch.arange(length, device=weight.device, dtype=eigenvalue.dtype).view(1, -1, 1)
    reduction = Genred(
        "ComplexMult(W, ComplexExp(ComplexMult(E, Real2Complex(l))))",
        ["W = Vj(0, 2)", "E = Vj(1, 2)", "l = Vi(2, 1)"],
        reduction_op="Sum",
        axis=1,
    )
    rows = torch.view_as_real(weight.resolve_conj()).contiguous()
    eigenvalue = eigenvalue.unsqueeze(-3).expand_as(rows).contiguous()
    positions = position.expand(*rows.shape[:-2], -1, -1).contiguous()
    kernel: Tensor = reduction(rows, eigenvalue, positions)[..., 0]
    return kernel


KERNELS: dict[str, Callable[..., Tensor]] = {"package": exp_kernel, "plain": plain_kernel, "keops": keops_kernel}


def plain_bytes(case: dict[str, Any]) -> int:
    """Return the bytes that training the plain form needs: table, exponents and their two gradients, in complex64."""
    groups = case["channels"] if case["model"] == "dss" else 1
    return int(4 * 8 * groups * case["states"] * case["length"])


def free_bytes(device: str) -> int:
    """Return the bytes of memory that are available to a new process."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def make_kernel(case: dict[str, Any]) -> DLRKernel | DSSKernel:
    torch.manual_seed(0)
    if case["model"] == "dss":
        return DSSKernel(DSS(d_model=case["channels"], d_state=case["states"]))
    return DLRKernel(DLR(d_model=case["channels"], d_state=case["states"]))


def kernel_run(case: dict[str, Any], length: int) -> Callable[[], None]:
    kernel = make_kernel(case).to(case["device"])
    cotangent = torch.randn(1, case["channels"], length, device=case["device"])

    def run() -> None:
        kernel.zero_grad()
        kernel(length).backward(cotangent)

    return run


def step_run(case: dict[str, Any], length: int) -> Callable[[], None]:
    from lrtasks.models import build

    torch.manual_seed(0)
    spec = Spec("real", length, 3)
    model = build(case["model"], spec, spec, d_model=case["channels"], d_state=case["states"]).to(case["device"])
    optimiser = torch.optim.AdamW(model.parameters())
    x = torch.randn(case["batch"], length, 3, device=case["device"])

    def run() -> None:
        optimiser.zero_grad()
        (model(x) - x).square().mean().backward()
        optimiser.step()

    return run


def error(case: dict[str, Any]) -> float:
    """Return the largest difference from float64 at up to 65 positions, divided by the largest float64 value there."""
    length = case["length"]
    kernel = make_kernel(case).to(case["device"])
    positions = torch.unique(torch.linspace(0, length - 1, 65, device=case["device"]).round().long())
    with torch.no_grad():
        found = kernel(length)[0][:, positions].double()
        found_sum = kernel.recurrence()
        assert found_sum is not None
        weight, exponent = found_sum
        exact = torch.stack([(weight * torch.exp(exponent * float(at))).sum(-1).real for at in positions], -1)
    return float((found - exact).abs().max() / exact.abs().max())


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case in this process and return its measurements."""
    torch.set_num_threads(case["threads"])
    for module in (lrtasks.models.dlr, lrtasks.models.s4d):  # the modules that call it
        vars(module)["exp_kernel"] = KERNELS[case["form"]]
    make = step_run if case["step"] else kernel_run
    on_gpu = case["device"] == "cuda"
    make({**case, "states": 512, "channels": 4}, 2048)()  # load thread pools, libraries and code before the measurement
    run = make(case, case["length"])
    memory = PeakMemory(torch.device(case["device"]))
    wall: list[float] = []
    cpu: list[float] = []
    while len(wall) < case["repeats"] and sum(wall) < ENOUGH:
        start, start_cpu = time.perf_counter(), time.process_time()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    extra = memory.above_start()
    assert extra is not None
    figures = {"seconds": min(wall), "cpu_seconds": min(cpu), "extra_bytes": extra, "runs": len(wall)}
    return figures if case["step"] else {**figures, "error": error(case)}


def measure_apart(case: dict[str, Any]) -> dict[str, Any]:
    """Measure in a new process; for a case that cannot run, the entry ``skipped`` has the reason."""
    if case["form"] == "keops" and importlib.util.find_spec("pykeops") is None:
        return {**case, "skipped": "PyKeOps is not installed"}
    needed, free = plain_bytes(case), free_bytes(case["device"])
    if case["form"] == "plain" and needed > 0.9 * free:
        return {**case, "skipped": f"needs about {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB free"}
    found = run_in_process(measure, case, time_limit=TIME_LIMIT)
    return {**case, **({"skipped": f"failed: {found['reason']}"} if "reason" in found else found)}


def print_header() -> None:
    print(f"{'length':>9}  {'form':<8}  {'seconds':>9}  {'CPU s':>9}  {'extra MB':>9}  {'error':>8}  against plain")


def print_row(row: dict[str, Any], plain: dict[str, Any] | None) -> None:
    start = f"{row['length']:>9}  {row['form']:<8}  "
    if "skipped" in row:
        print(start + f"skipped: {row['skipped']}", flush=True)
        return
    missed = f"{row['error']:.1e}" if "error" in row else "-"
    beside = ""
    if plain and "seconds" in plain and plain is not row:
        faster, smaller = plain["seconds"] / row["seconds"], plain["extra_bytes"] / max(row["extra_bytes"], 1)
        beside = f"{faster:.1f}x faster, 1/{smaller:.1f} of the memory"
    print(
        start
        + f"{row['seconds']:9.4f}  {row['cpu_seconds']:9.4f}  {row['extra_bytes'] / 1e6:9.1f}  {missed:>8}  {beside}",
        flush=True,
    )


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Plot time and memory against length, log-log, one line per form."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, scale, label in zip(
        axes,
        ("seconds", "extra_bytes"),
        (1.0, 1e-6),
        ("seconds, forward and backward", "extra memory, MB"),
        strict=True,
    ):
        for form in FORMS:
            points = [(row["length"], row[key] * scale) for row in rows if row["form"] == form and key in row]
            if points:
                axis.loglog(*zip(*points, strict=True), marker="o", label=form)
        axis.set(xlabel="length L", ylabel=label)
        axis.grid(True, which="both", alpha=0.3)
    axes[0].legend()
    case = rows[0]
    figure.suptitle(f"{case['model']}, {case['states']} states, {case['channels']} channels, {case['device']}")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("dlr", "dss"), default="dlr")
    parser.add_argument("--states", type=int, default=4096, help="N")
    parser.add_argument("--channels", type=int, default=32, help="H")
    parser.add_argument(
        "--lengths", default=",".join(str(1 << i) for i in range(10, 21, 2)), help="separated by commas"
    )
    parser.add_argument("--step", action="store_true", help="a whole training step in place of the kernel alone")
    parser.add_argument("--batch", type=int, default=4, help="sequences in a step")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument(
        "--repeats", type=int, default=5, help=f"runs per case, of which the best counts (<= {ENOUGH} s)"
    )
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--plot", metavar="PATH", help="draw time and memory against length")
    args = parser.parse_args()
    forms = args.forms.split(",")
    for form in (form for form in forms if form not in FORMS):
        parser.error(f"unknown form {form!r}; allowed: {', '.join(FORMS)}")
    shared = {key: getattr(args, key) for key in ("model", "states", "channels", "step", "batch", "repeats", "threads")}
    rows = []
    if not args.json:
        what = f"training step, batch {args.batch}" if args.step else "kernel, forward and backward"
        print(f"{args.model} {what}, N = {args.states}, H = {args.channels}, {args.threads} threads, {args.device}")
        print_header()
    for length in (int(text) for text in args.lengths.split(",")):
        here = [measure_apart({**shared, "device": args.device, "length": length, "form": form}) for form in forms]
        plain = next((row for row in here if row["form"] == "plain"), None)
        rows += here
        if not args.json:
            for row in here:
                print_row(row, plain)
    if args.json:
        print(json.dumps(rows, indent=1))
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
