"""The snippets of docs/data.md run, in order, in one session."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    session: dict[str, Any] = {}
    ran = []
    for block in blocks:
        optional = next((name for name in ("jax", "datasets") if f"import {name}" in block), None)
        if optional is None or importlib.util.find_spec(optional):
            exec(compile(block, str(PAGE), "exec"), session)
            ran.append(optional)
    assert ran.count(None) == 4
    expected = session["task"].batch([0])
    # whichever of pandas and Hugging Face came last
    assert np.array_equal(session["mask"].ravel(), expected.y[0])
    assert session["manifest"].counts == {"train": 96, "val": 2, "test": 2}
