"""The cases: every model at every length; all settings that change a cost make another case."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lrtasks.bench import UNFUSED, run
from lrtasks.bench.measure import Case, Settings
from lrtasks.bench.run import all_models, file_of, make_cases, source_digest
from lrtasks.errors import UsageError
from lrtasks.models import names

SETTINGS = Settings(d_model=8, layers=1)


def test_short_lengths_and_the_transformer_come_first() -> None:
    made = make_cases(["seqboat", "mega"], [64, 32, 64], SETTINGS)
    assert [(case.model, case.length) for case in made] == [
        (model, length) for length in (32, 64) for model in ("transformer", "seqboat", "mega")
    ]


@pytest.mark.parametrize("model", all_models())
def test_every_model_has_the_same_task(model: str) -> None:
    built = Case(model, 32, SETTINGS).build()
    assert (built.input.kind, built.input.length, built.input.width) == ("token", 32, 256)
    assert (built.target.kind, built.target.width, built.target.pooled) == ("token", 2, True)
    assert built.causal and built.decoder.in_features == 8


def test_a_mixer_with_variable_arguments_has_the_same_size_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from torch import nn\n\ndef mixer(d_model, **options):\n    return nn.Linear(d_model, d_model)\n"
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert Case("mine.py:mixer", 32, SETTINGS).factory.parameters == {"d_model": 8, "layers": 1}


def test_all_models_are_the_registered_ones_and_the_unfused_transformer() -> None:
    assert set(all_models()) == {*names(), UNFUSED}
    assert Case(UNFUSED, 32, SETTINGS).factory == Case("transformer", 32, SETTINGS).factory


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
    monkeypatch.setattr(run, "device_name", lambda _: "any")
    this = Case("seqboat", 32, SETTINGS)
    assert file_of(this, Path()) != file_of(dataclasses.replace(this, **changes), Path())
    assert file_of(this, Path()) == file_of(Case("seqboat", 32, Settings(d_model=8, layers=1)), Path())


def test_so_do_model_length_code_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        file_of(Case(model, length, SETTINGS), Path()) for model in ("transformer", UNFUSED) for length in (32, 64)
    }
    for owner, name in ((run, "source_digest"), (run, "device_name"), (run.torch, "__version__")):
        monkeypatch.setattr(owner, name, "other" if name == "__version__" else lambda *_: "other")
        files.add(file_of(Case("transformer", 32, SETTINGS), Path()))
    assert len(files) == 7


def test_the_digest_of_the_code_covers_what_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"models": "models/__init__.py", "optimiser": "optimiser.py", "measure": "measure.py"}
    (tmp_path / "models" / "ops").mkdir(parents=True)
    found = set()
    with monkeypatch.context() as patch:  # pytest itself needs getfile to report a failure
        patch.setattr(run.inspect, "getfile", lambda module: tmp_path / files[module.__name__.rpartition(".")[2]])
        for place in (*files.values(), "models/ops/scans.py"):
            for text in ("a = 1", "a = 2"):
                for file in files.values():
                    (tmp_path / file).touch()
                (tmp_path / place).write_text(text)
                source_digest.cache_clear()
                found.add(source_digest())
    source_digest.cache_clear()
    assert len(found) == 8


def test_an_edit_of_the_users_model_makes_another_case(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    files = set()
    for end in ("", "# edited"):
        module.write_text(
            f"from torch import nn\nclass Mine(nn.Linear):\n"
            f"    def __init__(self, d_model): super().__init__(d_model, d_model)\n{end}"
        )
        files.add(file_of(Case(f"{module}:Mine", 32, SETTINGS), Path()))
    assert len(files) == 2


EVEN = """
import lrtasks
from torch import nn

class Even(nn.Module):
    def __init__(self, input, target, hidden=8, depth=1):
        super().__init__()
        if input.length % 2:
            raise lrtasks.UsageError("the length must be even")
        self.inner = nn.Embedding(input.width, hidden)
"""


def test_a_model_may_refuse_some_lengths(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(EVEN)
    address = f"{tmp_path / 'even.py'}:Even"
    assert len(make_cases([address], [15, 16], SETTINGS)) == 4
    with pytest.raises(UsageError, match="the length must be even"):
        make_cases([address], [15, 17], SETTINGS)


def test_model_and_the_label_of_the_users_model_may_both_have_settings(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(EVEN)
    address = f"{tmp_path / 'even.py'}:Even"
    *_, case = make_cases([address], [16], SETTINGS, hyper={"model": {"hidden": 4}, "Even": {"depth": 3}})
    assert case.factory.parameters == {"hidden": 4, "depth": 3}
    again = dataclasses.replace(case, hyper={"Even": {"hidden": 4, "depth": 3}})
    other = dataclasses.replace(case, hyper={"Even": {"depth": 3, "hidden": 4}})
    assert file_of(again, Path()) == file_of(other, Path()), "the order of settings has no meaning"
    with pytest.raises(UsageError, match="hidden is given twice"):
        make_cases([address], [16], SETTINGS, hyper={"model": {"hidden": 4}, "Even": {"hidden": 3}})


def test_a_hybrid_has_layers_of_its_own() -> None:
    *_, hybrid = make_cases(["hybrid"], [32], SETTINGS, hyper={"hybrid": {"layers": "gla:1"}})
    assert type(hybrid.build().blocks[0].mixer).__name__ == "GLALayer"


@pytest.mark.parametrize(
    ("hyper", "words"),
    [
        ({"nothing": {"a": 1}}, "unknown model 'nothing'"),
        ({"seqboat": {"windw": 7}}, "seqboat has no parameter 'windw'"),
        ({"seqboat": {"d_model": 1}}, "seqboat.d_model cannot differ between models; give d_model for all"),
        ({"hybrid": {"n_layers": 1}}, "hybrid.n_layers cannot differ between models; give layers for all"),
        ({"transformer": {"heads": 3}}, "d_model must be a multiple of 2 \\* heads"),
    ],
)
def test_mistakes_in_settings_of_one_model(hyper: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_cases([], [32], Settings(), hyper=hyper)
