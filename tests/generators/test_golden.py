"""Golden hashes: the streams of each task's version are what they were when the version was published.

``python tests/generators/test_golden.py --write`` adds hashes of new tasks and of raised versions; it refuses to change
the hash of a version that has one already.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lrtasks.check.task import batch_digest
from lrtasks.generators import Task, make, registry
from lrtasks.generators.base import MAX_SEED, SPLITS

GOLDEN = Path(__file__).parent.parent / "data" / "golden.json"
INDICES = (0, 1, 2, 1_000_003)


def stream_hash(task: Task) -> str:
    """Hash of some samples of every split under several seeds; real values rounded to 1e-6."""
    digests = [batch_digest(task.batch(INDICES, seed, split), 6) for seed in (0, 1, MAX_SEED) for split in SPLITS]
    return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def load() -> dict[str, Any]:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    return golden


@pytest.mark.parametrize("name", registry.built_in())
def test_streams_are_what_their_version_says(name: str) -> None:
    golden = load()
    assert name in golden, f"no golden hash of {name}: run python {Path(__file__).name} --write"
    assert registry.get(name).version == golden[name]["version"], (
        f"{name} has a new version: run python {Path(__file__).name} --write"
    )
    assert stream_hash(make(name, **golden[name]["parameters"])) == golden[name]["hash"], (
        f"the stream of {name} changed: raise the version of its class"
    )


def test_golden_tasks_exist() -> None:
    assert set(load()) <= set(registry.built_in())


def write() -> int:
    """Bring the file up to date; return 1 if a stream changed without its version."""
    golden, changed = load(), []
    for name in registry.built_in():
        old = golden.get(name, {})
        parameters = old.get("parameters") or registry.get(name).preset_values("small")[0]
        task = make(name, **parameters)
        new = {"version": task.version, "parameters": parameters, "hash": stream_hash(task)}
        if old and old["version"] == new["version"] and old["hash"] != new["hash"]:
            changed.append(name)
        else:
            golden[name] = new
    GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    for name in changed:
        print(f"the stream of {name} changed: raise the version of its class first", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write tests/data/golden.json")
    parser.parse_args()
    sys.exit(write())
