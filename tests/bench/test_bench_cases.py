"""What is measured: every model at every length, told apart by all that decides a cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lrtasks.bench import case as cases
from lrtasks.bench.case import UNFUSED, Bench, Case, Settings, all_models, make_cases, source_digest
from lrtasks.errors import UsageError
from lrtasks.models import names

BENCH = Bench(Settings(d_model=8, layers=1))


def test_short_lengths_and_the_transformer_come_first() -> None:
    made = make_cases(BENCH, ["seqboat", "mega"], [64, 32, 64])
    assert [(case.model, case.length) for case in made] == [
        (model, length) for length in (32, 64) for model in ("transformer", "seqboat", "mega")
    ]


@pytest.mark.parametrize("model", all_models())
def test_every_model_has_the_same_task(model: str) -> None:
    built = Case(BENCH, model, 32).build()
    assert (built.input.kind, built.input.length, built.input.width) == ("token", 32, 256)
    assert (built.target.kind, built.target.width, built.target.pooled) == ("token", 2, True)
    assert built.causal and built.decoder.in_features == 8


def test_all_models_are_the_registered_ones_and_the_unfused_transformer() -> None:
    assert set(all_models()) == {*names(), UNFUSED}
    assert Case(BENCH, UNFUSED, 32).config == Case(BENCH, "transformer", 32).config


OTHERS: list[dict[str, Any]] = [
    {"settings": Settings(d_model=16, layers=1)},
    {"settings": Settings(d_model=8, layers=1, repeats=6)},
    {"settings": Settings(d_model=8, layers=1, bidirectional=True)},
    {"hyper": {"seqboat": {"window": 7}}},
    {"hyper": {"transformer": {"heads": 1}}},
    {"device": "cuda"},
]


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_whatever_decides_a_cost_decides_the_file(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "device_name", str)
    this = Case(BENCH, "seqboat", 32)
    other = Case(dataclasses.replace(BENCH, **changes), "seqboat", 32)
    assert this.file(Path()) != other.file(Path())
    assert this.file(Path()) == Case(Bench(Settings(d_model=8, layers=1)), "seqboat", 32).file(Path())


def test_so_do_model_length_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {Case(BENCH, model, length).file(Path()) for model in ("transformer", UNFUSED) for length in (32, 64)}
    monkeypatch.setattr(cases, "source_digest", lambda: "other")
    files.add(Case(BENCH, "transformer", 32).file(Path()))
    assert len(files) == 5


def test_the_identity_tells_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "mine.py"
    seqboat, transformer = (Case(BENCH, model, 32) for model in ("seqboat", "transformer"))
    assert seqboat.identity()["source"] == transformer.identity()["source"]
    assert seqboat.identity()["module"] != transformer.identity()["module"]
    monkeypatch.setattr(cases.inspect, "getfile", lambda _: str(module))
    found = set()
    for text in ("a = 1", "a = 2"):
        module.write_text(text)
        source_digest.cache_clear()
        found |= {seqboat.identity()["source"], seqboat.identity()["module"]}
    source_digest.cache_clear()
    assert len(found) == 4


@pytest.mark.parametrize(
    ("names", "lengths", "words"),
    [
        (["seqbaot"], [32], "unknown model 'seqbaot'; did you mean 'seqboat'"),
        (["seqboat"], [32, 0], "a length must be at least 1 and at most 16_777_216, found 0"),
        (["seqboat"], [10**15], f"found {10**15}"),
    ],
)
def test_mistakes(names: list[str], lengths: list[int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_cases(BENCH, names, lengths)


@pytest.mark.parametrize(
    ("hyper", "words"),
    [
        ({"nothing": {"a": 1}}, "unknown model 'nothing'"),
        ({"seqboat": {"windw": 1}}, "seqboat has no parameter 'windw'; did you mean 'window'"),
        ({"seqboat": {"d_model": 1}}, "seqboat.d_model cannot differ between models; give d_model for all"),
        ({"transformer": {"heads": 3}}, "d_model must be a multiple of 2 \\* heads"),
    ],
)
def test_mistakes_in_settings_of_one_model(hyper: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Bench(Settings(), hyper=hyper)
