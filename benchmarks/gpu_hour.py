"""Use an hour on a GPU for checks and measurements, in calls of at most ten minutes; each continues the previous call.

    python benchmarks/gpu_hour.py --out results/gpu               # repeat until it prints that nothing is left
    python benchmarks/gpu_hour.py --out /tmp/gpu --device cpu --tiny --minutes 3   # a trial without a GPU

The order is: every model on the device against the CPU (values, gradients, masks, bf16, streaming), two steps of every
task, a run that is interrupted and resumed, a step with TF32, bf16 and torch.compile, ``lrtasks bench`` at 4,096 and
65,536 positions, the DLR paper's Table 1 at 4,096 positions with the cheap models first, ``lrtasks bench`` at the other
powers of two from 1,024 to 2^20, and the paper's Table 2 at 2^20. Records of the paper's runs go to ``paper`` in the
results folder. The file ``gpu_hour.json`` there lists the finished units, and the machine: the results of another one
need another folder. A unit during which the process ended is repeated once; failed units are repeated with ``--again``.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lrtasks.files import write_atomically
from lrtasks.processes import run_command

REPRODUCE = Path(__file__).parents[1] / "docs" / "reproduce.md"
MODELS_BY_COST = ("dlr", "dss", "sgconv", "attention")
TOLERANCE = 1e-3
"""Largest allowed difference between device and CPU in float32, divided by the largest value."""
ENOUGH = 90.0
"""Seconds that must be left of a call for another unit that cannot be stopped and continued."""
TRIES = 2
"""Number of times that a unit is begun if the process ends during it."""
TIME_LIMIT = 60
"""Time limit in seconds of each try of a measurement; a slower model is recorded as stopped."""
TINY_RUN = {
    "steps": 2,
    "eval_every": 1,
    "batch_size": 2,
    "val_batches": 1,
    "test_batches": 1,
    "length": 32,
    "d_model": 8,
}


def model(name: str, device: str) -> dict[str, float]:
    """Return the differences of one model between device and CPU, divided by the largest value; torch computes both."""
    import torch

    from lrtasks.models.factory import model_parameter_names
    from lrtasks.run_config import RunConfig

    torch.manual_seed(0)
    own = {"op_backend": "torch"} if "op_backend" in (model_parameter_names(name) or ()) else {}
    config = RunConfig.make("shift", name, settings=own)
    x, y = (torch.from_numpy(getattr(config.task.batch(range(2)), part)) for part in "xy")
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    mask[:, -8:] = False
    built, found = config.build().eval(), {}
    for module in built.modules():
        if isinstance(module, torch.nn.RNNBase):  # cuDNN has gradients in training mode only
            module.train()
    runs: dict[str, dict[str, torch.Tensor]] = {}
    for place in ("cpu", device):
        built, here = built.to(place), x.to(place)
        built.zero_grad()
        output = built(here)
        (output - y.to(place)).square().mean().backward()
        gradients = [value.grad.flatten() for value in built.parameters() if value.grad is not None]
        with torch.no_grad(), torch.autocast(place, torch.bfloat16):
            half = built(here)
        runs[place] = {
            "values": output,
            "gradients": torch.cat([torch.view_as_real(g).flatten() if g.is_complex() else g for g in gradients]),
            "masked": built(here, mask=mask.to(place)),
            "bf16": half.float(),
        }
    for what, value in runs["cpu"].items():
        other = runs[device][what].cpu()
        found[what] = float((other - value).detach().abs().max() / value.detach().abs().max())
    if config.task.causal:
        with torch.no_grad():
            state, outputs = built.initial_state(2), []
            for place in range(16):
                now, state = built.step(here[:, place], state)
                outputs.append(now)
            whole = built(here)[:, :16]
            found["streaming"] = float((torch.stack(outputs, 1) - whole).abs().max() / whole.abs().max())
    worst = max(value for what, value in found.items() if what != "bf16")
    if not worst < TOLERANCE or not found["bf16"] < 1:
        raise ArithmeticError(f"device and CPU differ: {found}")
    return found


def task(name: str, device: str, out: Path) -> dict[str, Any]:
    """Train two steps on one task."""
    import lrtasks

    budget = {**{key: value for key, value in TINY_RUN.items() if key not in ("length", "d_model")}}
    record = lrtasks.evaluate("attention", name, budget=budget, device=device, out=out, overwrite=True, quiet=True)
    return {"status": record.status, "seconds": record.cost["seconds_with_evaluation"]}


def resume(device: str, out: Path) -> dict[str, float]:
    """Compare a run that is interrupted at its first checkpoint and resumed with an uninterrupted run."""
    import lrtasks
    from lrtasks.evaluation import loop

    budget = {"steps": 8, "eval_every": 4, "val_batches": 1, "test_batches": 2}
    run = partial(lrtasks.evaluate, "dlr", "shift", budget=budget, device=device, overwrite=False, quiet=True)
    save = loop._save

    def cut_off(*arguments: Any) -> None:
        save(*arguments)
        raise KeyboardInterrupt

    whole = run(out=out / "whole").scores["test"]["r2"]
    loop._save = cut_off
    try:
        run(out=out / "cut")
    except KeyboardInterrupt:
        pass
    finally:
        loop._save = save
    found = {"whole": whole, "resumed": run(out=out / "cut").scores["test"]["r2"]}
    if abs(found["whole"] - found["resumed"]) > TOLERANCE:
        raise ArithmeticError(f"scores differ: {found}")
    return found


def options(name: str, device: str, length: int) -> dict[str, float]:
    """Return the milliseconds of a training step in float32, TF32, bf16 and compiled."""
    import torch

    from lrtasks.evaluation.optimiser import make_optimiser
    from lrtasks.run_config import RunConfig

    config = RunConfig.make("shift", name, settings={"length": length})
    x = torch.from_numpy(config.task.batch(range(4)).x).to(device)
    found = {}
    for option in ("float32", "tf32", "bf16", "compile"):
        torch.backends.cuda.matmul.allow_tf32 = option == "tf32"
        built = config.build().to(device)
        optimiser = make_optimiser(built, config.budget)
        forward = torch.compile(built) if option == "compile" else built
        times = []
        for _ in range(12):
            start = time.perf_counter()
            with torch.autocast(device, torch.bfloat16, enabled=option == "bf16"):
                loss = forward(x).float().square().mean()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        found[option] = min(times) * 1e3
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def commands(table: str, wanted: str, *, tiny: bool) -> list[list[str]]:
    """Return the commands of a table of the reproduction page, cheap models first."""
    section = REPRODUCE.read_text(encoding="utf-8").split(f"generated: reproduce {table} -->")[1].split("<!-- end")[0]
    tasks = re.findall(r"^\| ([a-z-]+) \|", section, re.MULTILINE)[2:]  # below the header and its rule
    by_column = [line for line in re.findall(r"^(lrtasks eval .*)$", section, re.MULTILINE) if "#" not in line]
    lines = re.findall(r"`(lrtasks eval [^`]*)`", section)
    lines += [line.replace("TASK", task) for line in by_column for task in tasks]
    found = [shlex.split(line)[1:] for line in lines if re.search(wanted, line)]

    def cost(words: list[str]) -> tuple[int, int]:
        layers = words[words.index("--layers") + 1] if "--layers" in words else 1
        return int(layers), MODELS_BY_COST.index(words[2])

    small = [word for name, value in TINY_RUN.items() for word in ("--set", f"{name}={value}")]
    cut = ["--length", "1048576"]
    return [
        [word for word in words if word not in cut] + small if tiny else words
        for words in sorted((words for words in found if words[2] in MODELS_BY_COST), key=cost)
    ]


def units(out: Path, device: str, *, tiny: bool) -> dict[str, Callable[[], Any] | list[str]]:
    """Return all units in order: a function, or the words of a command that continues where it was stopped."""
    import lrtasks

    listed: dict[str, Callable[[], Any] | list[str]] = {}
    names = lrtasks.models.names()
    listed |= {f"model {name}": partial(model, name, device) for name in names}
    listed |= {f"task {name}": partial(task, name, device, out / "smoke") for name in lrtasks.generators.names()}
    listed["resume"] = partial(resume, device, out / "smoke")
    length = 64 if tiny else 4096
    listed |= {f"options {name}": partial(options, name, device, length) for name in ("dlr", "attention", "mega")}
    first = (6,) if tiny else (12, 16)
    others = (7,) if tiny else [power for power in range(10, 21) if power not in first]
    tables = (("DLR paper, Table 1", "paper(?!.*--length)"), ("DLR paper, Table 2", "--length 1048576"))
    for powers, (table, wanted) in zip((first, others), tables, strict=True):
        for power in powers:
            how = ["--time-limit", str(TIME_LIMIT), "--device", device, "--out", str(out / "bench")]
            models = "dlr,attention" if tiny else "all"
            listed[f"bench {2**power}"] = ["bench", "--models", models, "--length", str(2**power), *how]
        for words in commands(table, wanted, tiny=tiny):
            listed[f"{table}: {shlex.join(words[1:])}"] = [*words, "--device", device, "--out", str(out / "paper")]
    return listed


def machine(device: str, *, tiny: bool) -> dict[str, Any]:
    """Return what all results of a folder have in common."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else device
    return {"device": name, "torch": torch.__version__, "tiny": tiny}


def carry_out(unit: Callable[[], Any] | list[str], seconds: float) -> dict[str, Any] | None:
    """Run a unit and return its outcome; ``None`` if a command ran out of time and was stopped."""
    start = time.monotonic()
    try:
        if callable(unit):
            found = {"status": "done", "found": unit()}
        else:
            code, said = run_command(unit, time_limit=seconds)
            if code is None:
                return None
            # bench ends with 1 if a model could not be measured; its files have the reason
            failed = code > (unit[0] == "bench")
            found = {
                "status": "failed" if failed else "done",
                "found": said.strip().splitlines()[-1:] if failed else [],
            }
    except Exception as error:  # a failure of one unit must not stop the others
        found = {"status": "failed", "found": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
    return {**found, "seconds": round(time.monotonic() - start, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="results folder")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--minutes", type=float, default=9.5, help="no longer than this in one call")
    parser.add_argument("--only", default="", help="units whose name matches this regular expression")
    parser.add_argument("--again", action="store_true", help="try what has failed once more")
    parser.add_argument("--tiny", action="store_true", help="short runs at small sizes, to try the command")
    given = parser.parse_args()
    end, file = time.monotonic() + 60 * given.minutes, given.out / "gpu_hour.json"
    given.out.mkdir(parents=True, exist_ok=True)
    done = json.loads(file.read_text()) if file.exists() else {}

    def note(name: str, outcome: dict[str, Any]) -> None:
        done[name] = outcome
        write_atomically(file, json.dumps(done, indent=1).encode())

    here = machine(given.device, tiny=given.tiny)
    if (before := done.get("machine", {"found": here})["found"]) != here:
        parser.error(f"{file} has the results of {before}; this machine is {here}: give another --out")
    note("machine", {"status": "done", "found": here})
    for name, outcome in done.items():
        if outcome["status"] == "begun" and outcome["tries"] >= TRIES:
            note(name, {"status": "failed", "found": "the process ended"})
    listed = units(given.out, given.device, tiny=given.tiny)
    left = [name for name in listed if re.search(given.only, name)]
    again = ("begun", "failed") if given.again else ("begun",)
    left = [name for name in left if name not in done or done[name]["status"] in again]
    for place, name in enumerate(left):
        seconds = end - time.monotonic()
        if seconds <= 0 or (place and callable(listed[name]) and seconds < ENOUGH):
            print(f"{len(left) - place} units are left; give the same command again")
            return
        if callable(listed[name]):
            note(name, {"status": "begun", "tries": done.get(name, {}).get("tries", 0) + 1})
        outcome = carry_out(listed[name], seconds)
        if outcome is None:
            print(f"{len(left) - place} units are left; {name} goes on in the next call")
            return
        note(name, outcome)
        print(f"{outcome['status']:7} {outcome['seconds']:8.1f} s  {name}  {outcome['found']}", flush=True)
    failed = [name for name, outcome in done.items() if outcome["status"] == "failed"]
    print(f"nothing is left; {len(failed)} failed" + "".join(f"\n  {name}: {done[name]['found']}" for name in failed))


if __name__ == "__main__":
    main()
