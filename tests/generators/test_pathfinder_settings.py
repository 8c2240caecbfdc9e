"""Settings of Pathfinder: each is kept, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathfinder_statistics import turned

from lrtasks.errors import UsageError
from lrtasks.generators import make

TASKS = ("pathfinder", "pathfinder-classification")


@settings(max_examples=12)
@given(
    given_settings=st.fixed_dictionaries(
        {
            "res": st.integers(70, 90),
            "variant": st.sampled_from(["paper", "clean"]),
            "dashes": st.integers(2, 6),
            "distractor_dashes": st.integers(1, 3),
            "distractors": st.integers(0, 8),
            "dash_length": st.integers(2, 7),
            "dash_thickness": st.sampled_from([1.0, 1.5, 3.0]),
            "gap_margins": st.sampled_from([(1,), (3,), (1, 2)]),
            "continuity": st.floats(1, 4),
            "seed_distance": st.integers(8, 10),
            "antialias": st.just(2),
            "mark_radius": st.floats(0.5, 5),
            "contrast": st.floats(0.5, 1),
            "padding": st.integers(1, 3),
        }
    )
)
def test_any_setting_is_kept(given_settings: dict[str, Any]) -> None:
    task = make("pathfinder", **given_settings)
    chosen = task.settings
    assert make("pathfinder", **task.parameters()) == task
    layout, picture = task.picture(np.random.default_rng(0))
    assert layout.kit.margin in chosen.gap_margins
    assert layout.scene.main.shape == (2, chosen.dashes, 3)
    assert layout.distractors <= chosen.distractors
    assert layout.scene.others.shape[1] == chosen.distractor_dashes
    assert picture.image.shape == (chosen.res, chosen.res)
    for dashes in (*layout.scene.main, *layout.scene.others[: layout.distractors]):
        turns = turned(layout.kit.angle[dashes[:, 2]])
        assert np.all(np.abs(turns) <= 90 / chosen.continuity)
        assert np.all((dashes[1:, :2] >= chosen.padding) & (dashes[1:, :2] < chosen.res - chosen.padding))
    assert (2 in picture.target) == (layout.label == 1)


def test_table_settings_are_shown_and_can_be_changed() -> None:
    task = make("pathfinder", res=256)
    assert task.parameters()["gap_margins"] == [4]
    assert task.parameters()["continuity"] == 2.2
    assert make("pathfinder", res=200).settings.dash_length == make("pathfinder", res=128).settings.dash_length
    assert make("pathfinder", res=128, dashes=9).settings.distractor_dashes == 3
    assert make("pathfinder", res=128, dashes=9, distractor_dashes=5).settings.distractor_dashes == 5


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"gap_margins": []}, "gap_margins must hold at least one margin, found none"),
        ({"dash_thickness": 1.3}, r"dash_thickness × antialias must be a whole number .* found 1.3 × 2 = 2.6"),
        ({"res": 40}, r"seed_distance=10 is too large for res=40: .* 0 pixels .* a dash with its margins needs 18"),
        ({"padding": 60}, "padding=60 is too large for res=128"),
        ({"continuity": 30}, "continuity=30 is too large for dash_length=5 and gap margin 2: .* at most 11.00"),
        ({"seed_distance": 30}, "seed_distance=30 is too large for res=128"),
    ],
)
@pytest.mark.parametrize("name", TASKS)
def test_bad_settings(name: str, given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make(name, **given_settings)
    assert "\n" not in str(caught.value)


def test_paths_that_cannot_fit_end_in_an_error() -> None:
    task = make("pathfinder", res=64, dashes=40, gap_margins=[2])
    message = "no two paths found for res=64 .* dashes=40 of dash_length=4 with a gap margin of 2 .* do not fit"
    with pytest.raises(UsageError, match=message):
        task.batch([0])
