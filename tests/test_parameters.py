"""Parameters as data: conversion, limits and messages; also specs and errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrtasks.config import Config, Presets, override, parameter, parse_assignment
from lrtasks.errors import UsageError, suggestion, unknown
from lrtasks.spec import Spec


@dataclass(frozen=True)
class Thing(Config):
    """A config with one field of every type."""

    count: int = parameter(3, "a count", at_least=1, at_most=1_000_000)
    rate: float = parameter(0.5, "a rate", above=0, at_most=0.99)
    flag: bool = parameter(False, "a switch")
    word: str = parameter("a", "a word")
    norm: Literal["layer", "none"] = parameter("layer", "a choice")
    level: Literal[1, 2] = parameter(1, "a numeric choice")
    limit: int | None = parameter(None, "an optional count", at_least=2)
    label: str | None = parameter(None, "an optional word")
    even: int | None = parameter(None, "an optional choice", choices=(2, 4))
    span: tuple[float, float] = parameter((0.0, 1.0), "two numbers", at_least=0)
    sizes: tuple[int, ...] = parameter((1,), "any number of counts", at_most=9)
    names: tuple[str, ...] = parameter((), "any number of words")

    def check(self) -> None:
        if self.span[0] > self.span[1]:
            raise UsageError(f"thing: span must ascend, found {self.span}")


@pytest.mark.parametrize(
    ("name", "given_value", "kept"),
    [
        ("count", 7.0, 7),
        ("count", np.int64(7), 7),
        ("count", np.float32(7), 7),
        ("count", Fraction(14, 2), 7),
        ("rate", np.float32(0.25), 0.25),
        ("rate", Fraction(1, 4), 0.25),
        ("flag", True, True),
        ("word", "none", "none"),
        ("norm", "none", "none"),
        ("level", 2, 2),
        ("limit", None, None),
        ("limit", "none", None),
        ("limit", "None", None),
        ("limit", 5, 5),
        ("label", "none", "none"),
        ("even", None, None),
        ("even", 4, 4),
        ("span", [0, 2], (0.0, 2.0)),
        ("sizes", [], ()),
        ("sizes", [1, 2.0, 9], (1, 2, 9)),
        ("sizes", 2, (2,)),
        ("sizes", "1,2", (1, 2)),
        ("names", ["a,b", "c"], ("a,b", "c")),
    ],
)
def test_values_become_the_declared_type(name: str, given_value: Any, kept: Any) -> None:
    value = getattr(Thing.make(**{name: given_value}), name)
    assert value == kept
    assert type(value) is type(kept)
    if isinstance(kept, tuple):
        assert [type(item) for item in value] == [type(item) for item in kept]


WHOLE = "thing: count must be a whole number, found "


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 2.5, WHOLE + "2.5"),
        ("count", np.float32(2.5), WHOLE),
        ("count", Decimal("2.5"), WHOLE),
        ("count", Fraction(5, 2), WHOLE),
        ("count", "3", WHOLE + "'3'"),
        ("count", True, WHOLE + "True"),
        ("count", np.True_, WHOLE),
        ("count", None, WHOLE + "None"),
        ("count", "none", WHOLE + "'none'"),
        ("count", [3], WHOLE + "[3]"),
        ("count", np.array([3]), WHOLE + "array([3])"),
        ("count", float("nan"), WHOLE + "nan"),
        ("count", float("inf"), WHOLE + "inf"),
        ("count", 0, "thing: count must be at least 1 and at most 1,000,000, found 0"),
        ("count", 10**400, "thing: count must be at least 1 and at most 1,000,000, found 1000"),
        ("rate", 0, "thing: rate must be above 0 and at most 0.99, found 0.0"),
        ("rate", 1, "thing: rate must be above 0 and at most 0.99, found 1.0"),
        ("rate", 10**400, "thing: rate must be a number, found 1000"),
        ("rate", "0.5", "thing: rate must be a number, found '0.5'"),
        ("rate", float("nan"), "thing: rate must be a number, found nan"),
        ("rate", float("inf"), "thing: rate must be a number, found inf"),
        ("rate", 1j, "thing: rate must be a number, found 1j"),
        ("flag", 1, "thing: flag must be true or false, found 1"),
        ("flag", "yes", "thing: flag must be true or false, found 'yes'"),
        ("word", 3, "thing: word must be a string, found 3"),
        ("norm", "Layr", "thing: norm must be one of 'layer', 'none', found 'Layr'; did you mean 'layer'?"),
        ("norm", None, "thing: norm must be one of 'layer', 'none', found None"),
        ("level", 3, "thing: level must be one of 1, 2, found 3"),
        ("level", True, "thing: level must be one of 1, 2, found True"),
        ("level", [1], "thing: level must be one of 1, 2, found [1]"),
        ("limit", 1.5, "thing: limit must be a whole number or none, found 1.5"),
        ("limit", 1, "thing: limit must be at least 2, found 1"),
        ("even", 3, "thing: even must be one of 2, 4, found 3"),
        ("span", [1], "thing: span must be a list of 2: a number, a number, found [1]"),
        ("span", 3, "thing: span must be a list of 2: a number, a number, found 3"),
        ("span", [-1, 0], "thing: span must be at least 0, found -1.0"),
        ("span", [2, 1], "thing: span must ascend, found (2.0, 1.0)"),
        ("sizes", [1, "x"], "thing: sizes must be a list whose entries are each a whole number, found [1, 'x']"),
        ("sizes", [1, 10], "thing: sizes must be at most 9, found 10"),
        ("names", "a,b", "thing: names must be a list whose entries are each a string, found 'a,b'"),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Thing.make(**{name: value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_errors_with_the_close_ones() -> None:
    with pytest.raises(UsageError, match=r"^thing has no parameter 'cuont'; did you mean 'count'\? \(it has: count, "):
        Thing.make(cuont=3)


@given(count=st.integers(1, 10**6), rate=st.floats(0.01, 0.99), sizes=st.lists(st.integers(-9, 9)))
def test_parameters_survive_json(count: int, rate: float, sizes: list[int]) -> None:
    thing = Thing.make(count=count, rate=rate, sizes=sizes)
    assert Thing.make(**json.loads(json.dumps(thing.parameters()))) == thing


def test_parameters_are_described() -> None:
    described = {entry["name"]: entry for entry in Thing.describe_parameters()}
    assert list(described) == Thing.parameter_names()
    json.dumps(described)
    count = {"name": "count", "type": "int", "default": 3, "doc": "a count", "at_least": 1, "at_most": 1_000_000}
    assert described["count"] == count
    assert described["limit"]["type"] == "int | None"
    assert described["norm"]["type"] == "Literal['layer', 'none']"
    assert described["span"]["default"] == [0.0, 1.0]
    assert described["even"]["choices"] == [2, 4]


def test_checks_run_on_every_way_to_make_one() -> None:
    with pytest.raises(UsageError, match="count"):
        Thing(count=0)
    with pytest.raises(UsageError, match="count"):
        replace(Thing(), count=0)


@dataclass(frozen=True)
class Odd(Config):
    """A config with a field type that parameters cannot have."""

    table: dict[str, int] = field(default_factory=dict)


def test_types_that_cannot_be_converted_are_a_programmers_mistake() -> None:
    with pytest.raises(TypeError, match=r"a parameter cannot be declared as dict\[str, int\]"):
        Odd()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shifts=4", ("shifts", 4)),
        ("learning-rate=1e-3", ("learning_rate", 1e-3)),
        (" x =[1, 2]", ("x", [1, 2])),
        ("flag= True", ("flag", True)),
        ("flag=false", ("flag", False)),
        ("limit=null", ("limit", None)),
        ("norm=none", ("norm", "none")),
        ("name=a=b", ("name", "a=b")),
        ("name=", ("name", "")),
        ("count=" + "9" * 5000, ("count", "9" * 5000)),
    ],
)
def test_assignments_are_read(text: str, expected: tuple[str, Any]) -> None:
    assert parse_assignment(text) == expected


def test_an_override_with_an_owner_leaves_the_parameters_of_other_owners() -> None:
    assert override({"model.length": 8, "task.length": 4}, {"task.length": 32}) == {
        "model.length": 8,
        "task.length": 32,
    }


def test_a_preset_sets_parameters_of_its_class_only() -> None:
    class Preset(Thing):
        presets: ClassVar[Presets] = {"small": {"count": 4, "budget.steps": 5}, "odd": {"cuont": 4}}

    assert Preset.preset_values("small") == ({"count": 4}, {"steps": 5})
    assert Preset.preset_values("other") == ({}, {})
    with pytest.raises(UsageError, match=r"unknown parameter in preset odd of preset: 'cuont'; did you mean 'count'"):
        Preset.preset_values("odd")


@pytest.mark.parametrize("text", ["shifts", "=4", " =4", ""])
def test_assignments_need_name_and_value(text: str) -> None:
    with pytest.raises(UsageError, match="--set takes NAME=VALUE, found "):
        parse_assignment(text)


def test_suggestions_ignore_case_and_need_some_likeness() -> None:
    assert suggestion("SHIFT", ["shift", "sort"]) == "; did you mean 'shift'?"
    assert suggestion("k", ["K", "other"]) == "; did you mean 'K'?"
    assert suggestion("slect", ["select", "selects", "mips"]) == "; did you mean 'select' or 'selects'?"
    assert suggestion("zzz", ["shift", "sort"]) == ""


def test_unknown_lists_what_is_allowed() -> None:
    assert str(unknown("task", "zzz", ["b", "a"])) == "unknown task 'zzz'. Allowed: a, b"
    assert str(unknown("task", "zzz", [])) == "unknown task 'zzz'. Allowed: (none)"


def test_spec_shapes() -> None:
    assert Spec("real", 5, 3).shape(2) == (2, 5, 3)
    assert Spec("token", 5, 3).shape(2) == (2, 5)
    assert Spec("token", 5, 3, pooled=True).shape(2) == (2, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("image", 5, 3), "kind must be 'real' or 'token', found 'image'"),
        (("real", 0, 3), "length must be a whole number of at least 1, found 0"),
        (("real", 5.0, 3), "length must be a whole number of at least 1, found 5.0"),
        (("real", 5, -3), "width must be a whole number of at least 1, found -3"),
        (("real", 5, True), "width must be a whole number of at least 1, found True"),
    ],
)
def test_impossible_specs_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=f"^spec: {message}$"):
        Spec(*arguments)


def test_a_number_stands_for_a_text_choice() -> None:
    from lrtasks.budget import Budget

    assert Budget.make(precision=32).precision == "32"
    with pytest.raises(UsageError, match="precision"):
        Budget.make(precision=64)
    with pytest.raises(UsageError, match="precision"):
        Budget.make(precision=True)
