"""Recall, hops, capacity and latching: the published targets exactly, and the distributions of samples by statistics.

The arrays beside this file are samples of the published generators (MAD, Zoology, HAX, hop-induction-heads, PhysicsLM4,
S4, TCN).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lrtasks.generators import make
from lrtasks.spec import IGNORED

UNLIKELY = 1e-4


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(Path(__file__).with_name(f"{name}.npz")) as file:
        return {key: file[key].astype(np.float32 if "adding" in key else np.int64) for key in file.files}


RETRIEVAL, HOPS, CAPACITY = (arrays(name) for name in ("retrieval", "hops", "capacity"))


def same_mean(ours: Any, theirs: Any) -> bool:
    """Whether two samples' means differ by at most four standard errors."""
    one, two = (np.asarray(values, dtype=np.float64).ravel() for values in (ours, theirs))
    return bool(abs(one.mean() - two.mean()) <= 4 * np.hypot(stats.sem(one), stats.sem(two)) + 1e-12)


def uniform(values: Any, classes: int) -> bool:
    counts = np.bincount(np.asarray(values).ravel(), minlength=classes)
    return len(counts) == classes and bool(stats.chisquare(counts).pvalue > UNLIKELY)


def same_law(ours: Any, theirs: Any) -> bool:
    return bool(stats.ks_2samp(np.asarray(ours).ravel(), np.asarray(theirs).ravel()).pvalue > UNLIKELY)


# targets of the published samples


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("in_context", {"vocab": 16, "noise_vocab": 0, "noise": 0.0}), ("noisy", {"vocab": 32, "noise": 0.2})],
)
def test_noisy_recall_answers_as_mad(name: str, parameters: dict[str, Any]) -> None:
    task = make("noisy-recall", length=128, **parameters)
    for x, y in zip(RETRIEVAL[f"{name}_test_x"], RETRIEVAL[f"{name}_test_y"], strict=True):
        assert task.answer(x).tolist() == y.tolist()


def test_fuzzy_recall_answers_as_mad_wherever_the_text_holds_the_answer() -> None:
    task = make("fuzzy-recall")
    unknown = 0
    for x, y in zip(RETRIEVAL["fuzzy_test_x"], RETRIEVAL["fuzzy_test_y"], strict=True):
        found = task.answer(x)
        if found[-1] == IGNORED:  # the probe was not shown before: MAD labels a value that nothing tells
            unknown += 1
            keys = [x[at : at + 3].tolist() for at in range(len(x) - 2)]
            begin = max(at for at in range(len(x)) if x[at] < 7) - 2
            assert keys.count(x[begin : begin + 3].tolist()) == 1
            y = np.where(np.arange(len(y)) < begin, y, IGNORED)
        assert found.tolist() == y.tolist()
    assert unknown <= 4
    for x, y in zip(RETRIEVAL["fuzzy_train_x"], RETRIEVAL["fuzzy_train_y"], strict=True):
        found = task.answer(x)
        asked = found >= 0
        assert (found[asked] == y[asked]).all() and asked.any()  # training labels are the next tokens


def test_joint_recall_answers_as_hax() -> None:
    task = make("joint-recall", contexts=(5, 8), keys=(5, 8), values=16, room=(8, 8))
    for given, mask in zip(RETRIEVAL["joint_tokens"], RETRIEVAL["joint_mask"], strict=True):
        x = np.select([given == 1, given == 4, given == 3], [0, 1, 2], given - 7)
        following = np.append(x[1:], IGNORED)
        assert task.answer(x).tolist() == np.where(mask == 1, following, IGNORED).tolist()


def test_overwrite_answers_as_zoology() -> None:
    task = make("overwrite", law="zoology", keys=16, updates=8, vocab=512, length=128)
    for x, y in zip(RETRIEVAL["forgetting_x"], RETRIEVAL["forgetting_y"], strict=True):
        assert task.answer(x).tolist() == y.tolist()


def test_k_hop_answers_as_sanford() -> None:
    sanford, clean = make("k-hop"), make("k-hop", law="clean")
    for x, y in zip(HOPS["khop_x"], HOPS["khop_y"], strict=True):
        expected = y - 17  # their letters, then none, then blank: ours
        expected[1:] = np.where(y[1:] == 21, 4, expected[1:])
        assert sanford.answer(x).tolist() == expected.tolist()
        assert clean.answer(x).tolist() == np.where(expected < 4, expected, IGNORED).tolist()


DEPO = {
    "depo1": {"nodes": (3, 75), "hops": 8, "words": (50, 1, 2)},
    "depo2": {"nodes": (3, 40), "hops": 16, "words": (3, 5, 7)},
}


def published_depo(name: str, split: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs in our numbers, and the tokens that are labelled as answers; -100 elsewhere."""
    vocab, hops = DEPO[name]["words"][0], DEPO[name]["hops"]  # type: ignore[index]
    answer, begin = 2 * vocab + hops + 1, 2 * vocab + hops + 2
    tokens, lengths, labels = (HOPS[f"{name}_{split}_{part}"] for part in ("tokens", "length", "label"))
    found = []
    for row, length, label in zip(tokens, lengths, labels, strict=True):
        given = row[:length]
        x = np.select([given == 9999, given == 9500, given > 9000], [begin, answer, given - 9000 + 2 * vocab], given)
        following, asked = np.append(given[1:], 9500), np.append(label[1:length], 0) == 1
        found.append((x, np.where(asked & (following != 9500), following, IGNORED)))
    return found


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", DEPO)
def test_depo_answers_as_published(name: str, split: str) -> None:
    task = make("depo", **DEPO[name])
    for x, y in published_depo(name, split):
        assert task.answer(x).tolist() == y.tolist()
        padded = np.append(x, np.zeros(9, int))
        assert task.answer(padded).tolist() == [*y.tolist(), *[IGNORED] * 9]


@pytest.mark.parametrize(("name", "law"), [("adding", "halves"), ("adding_tcn", "anywhere")])
def test_adding_answers_as_published(name: str, law: str) -> None:
    task = make("adding", length=100, law=law)
    for x, y in zip(CAPACITY[f"{name}_x"], CAPACITY[f"{name}_y"], strict=True):
        assert np.array_equal(task.answer(x)[0], y)


def test_compression_and_memorization_answer_as_mad() -> None:
    compression = make("compression")
    for x, y in zip(CAPACITY["compression_x"], CAPACITY["compression_y"], strict=True):
        assert compression.answer(x).tolist() == y[:-1].tolist()  # MAD scores the mark at the end, too
    memorization: Any = make("memorization", law="mad", facts=127, pairs=16)
    table = memorization.table().copy()
    assert memorization.answer(CAPACITY["memorization_x"][0]).tolist() != CAPACITY["memorization_y"][0].tolist()
    table[CAPACITY["memorization_map"][:, 0]] = CAPACITY["memorization_map"][:, 1]
    object.__setattr__(memorization, "table", lambda: table)  # MAD's map in place of ours
    for x, y in zip(CAPACITY["memorization_x"], CAPACITY["memorization_y"], strict=True):
        assert memorization.answer(x).tolist() == y.tolist()


# laws


def test_overwrite_mixed_updates_any_key_with_any_other_value() -> None:
    task = make("overwrite", keys=4, updates=20, vocab=12)
    x = task.batch(range(3000)).x
    keys, values = x[:, 0:48:2], x[:, 1:48:2]
    assert uniform(x[:, 0] - 1, 5) and uniform(values[:, 0] - 6, 6)
    order = np.argsort(np.argsort(keys[:, :4]))  # which of the sample's keys, by the order of tokens
    assert uniform(order[:, 0] * 4 + order[:, 3], 16) is False  # first and last differ
    later = (keys[:, 4:, None] == keys[:, None, :4]).argmax(axis=2)
    assert uniform(later, 4)
    steps = []
    for row_keys, row_values in zip(keys.tolist(), values.tolist(), strict=True):
        now: dict[int, int] = {}
        for key, value in zip(row_keys, row_values, strict=True):
            if key in now:
                steps.append((value - now[key]) % 6)
            now[key] = value
    assert 0 not in steps and uniform(np.array(steps) - 1, 5)
    asked = (x[:, 48::2, None] == keys[:, None, :4]).argmax(axis=2)
    assert uniform(asked[:, 0], 4) and (np.sort(asked) == np.arange(4)).all()


def test_overwrite_zoology_follows_its_law() -> None:
    task = make("overwrite", law="zoology", keys=16, updates=8, vocab=512, length=128)
    ours, theirs = task.batch(range(800)).x, RETRIEVAL["forgetting_x"]
    for x in (ours, theirs):
        assert all(len(set(row[:32:2])) == len(set(row[1:32:2])) == 16 for row in x.tolist())
        assert all(len(set(row[32:48:2])) == 8 and set(row[32:48:2]) <= set(row[:32:2]) for row in x.tolist())
    slots = [np.nonzero(x[:, 48::2])[1] for x in (ours, theirs)]
    assert same_law(*slots)
    first = [(x[:, 48::2] == x[:, :1]).argmax(axis=1) for x in (ours, theirs)]
    assert same_law(*first) and not same_law(first[0], np.arange(800) % 40)
    rank = [(x[:, 32:48:2, None] == x[:, None, :32:2]).argmax(axis=2) for x in (ours, theirs)]
    assert uniform(rank[0], 16) and same_law(*rank)
    old = np.take_along_axis(ours[:, 1:32:2], rank[0], axis=1)
    assert (ours[:, 33:48:2] != old).all()


@pytest.mark.parametrize(
    ("name", "parameters"), [("overwrite", {"law": "zoology", "keys": 4, "updates": 0}), ("mqar", {"pairs": 4})]
)
def test_slots_of_queries_are_uniform_at_power_one(name: str, parameters: dict[str, Any]) -> None:
    batch = make(name, length=32, vocab=64, power_a=1.0, **parameters).batch(range(2000))
    asked = (batch.x[:, 8::2] == batch.x[:, :1]) & (batch.y[:, 8::2] >= 0)
    assert uniform(asked.argmax(axis=1), 12)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("in_context", {"vocab": 16, "noise_vocab": 0, "noise": 0.0}), ("noisy", {"vocab": 32, "noise": 0.2})],
)
def test_noisy_recall_follows_mads_law(name: str, parameters: dict[str, Any]) -> None:
    task: Any = make("noisy-recall", **parameters)
    batch = task.batch(range(1500), split="test")
    theirs = RETRIEVAL[f"{name}_test_x"], RETRIEVAL[f"{name}_test_y"]
    measured: list[list[Any]] = [[], []]
    for found, (x, y) in zip(measured, ((batch.x, batch.y), theirs), strict=True):
        last, _ = task._last(x)
        distance = 2 * (np.arange(64) - last)[y[:, ::2] >= 0]
        noise = x[:, ::2] >= 16
        repeated = [max(np.bincount(row[::2][row[::2] < 8])) for row in x]
        found += [(y >= 0).sum(axis=1), distance, noise.sum(axis=1), x[:, -1], x[:, 1], repeated]
    for ours, published in zip(*measured, strict=True):
        assert same_law(ours, published) and same_mean(ours, published)
    other = make("noisy-recall", **{**parameters, "noise": 0.3, "vocab": 32, "noise_vocab": 16}).batch(range(1500))
    assert not same_mean((other.y >= 0).sum(axis=1), measured[1][0])


def test_noisy_recall_draws_each_part_uniformly() -> None:
    x = make("noisy-recall", noise=0.9, length=12).batch(range(6000)).x
    assert uniform(x[x >= 16] - 16, 16) and uniform(x[:, -1], 8)
    pairs = x[:, 0:10:2] < 8
    # one slot of six is spared, which can be the last, where all are keys
    expected = 5 * (1 / 6 + 5 / 6 * 0.1)
    assert abs(pairs.sum(axis=1).mean() - expected) < 4 * stats.sem(pairs.sum(axis=1))
    assert (pairs.sum(axis=1) == 0).mean() == pytest.approx(0.9**5 / 6, abs=0.015)


def test_keys_of_noisy_recall_are_near_at_any_length() -> None:
    """A slot holds a given one of eight keys with probability 0.8 / 8."""
    task: Any = make("noisy-recall", length=8192)
    batch = task.batch(range(32))
    last, _ = task._last(batch.x)
    distance = 2 * (np.arange(4096) - last)[batch.y[:, ::2] >= 0]
    for tokens in (14, 90):
        assert (distance <= tokens).mean() == pytest.approx(1 - 0.9 ** (tokens // 2), abs=0.01)


def test_noisy_recall_asks_at_the_distances_it_is_told() -> None:
    task: Any = make("noisy-recall", length=512, distance=(8, 300), noise=0.4)
    batch = task.batch(range(4000))
    last, count = task._last(batch.x)
    distance = 2 * (255 - last[:, -1])
    assert (count[:, -1] == 1).all() and ((batch.y >= 0).sum(axis=1) == 1).all()
    assert distance.min() == 8 and distance.max() == 300
    assert stats.kstest(np.log(distance + 1) - np.log(8), "uniform", (0, np.log(302 / 8))).statistic < 0.06


@pytest.mark.parametrize("split", ["train", "test"])
def test_fuzzy_recall_follows_mads_law(split: str) -> None:
    task: Any = make("fuzzy-recall")
    ours = task.batch(range(1000), split=split).x
    measured: list[list[Any]] = [[], []]
    for found, x in zip(measured, (ours, RETRIEVAL[f"fuzzy_{split}_x"]), strict=True):
        showings = [task._showings(row) for row in x.tolist()]
        found += [
            (x == 15).sum(axis=1),
            [len(row) for row in showings],
            [len(key) for row in showings for key, _, _ in row],
            [len(value) for row in showings for _, value, _ in row[:-1]],
            [key[0] for row in showings for key, _, _ in row],
            [value[-1] for row in showings for _, value, _ in row[:-1]],
            [sum(key == row[-1][0] for key, _, _ in row) for row in showings],
            [next(middle for key, _, middle in row if key == row[-1][0]) for row in showings],
        ]
    for number, (one, two) in enumerate(zip(*measured, strict=True)):
        assert same_law(one, two) and same_mean(one, two), number
    assert (set(measured[0][2]) == {3}) == (split == "test")


def test_fuzzy_recall_test_samples_have_the_labels_of_the_specification() -> None:
    y = make("fuzzy-recall").batch(range(3000), split="test").y
    assert (y >= 0).sum(axis=1).mean() == pytest.approx(4.4, abs=0.15)
    grid = make("fuzzy-recall", law="grid", length=125, value_tokens=2)
    assert (grid.batch(range(2000)).y >= 0).sum(axis=1).mean() == pytest.approx(34.6, abs=0.2)


def test_fuzzy_recall_grid_has_all_combinations_of_two_letters() -> None:
    x = make("fuzzy-recall", law="grid", length=125, value_tokens=2).batch(range(1500)).x.reshape(-1, 25, 5)
    for place in range(3):
        assert all(len(set(row)) <= 2 for row in x[..., place].tolist())
    counts = [len({tuple(key) for key in row}) for row in x[..., :3].tolist()]
    assert np.mean(counts) == pytest.approx(8 * (1 - (7 / 8) ** 25), abs=0.05)
    assert uniform(x[:, 0, 0], 8) and uniform(x[:, 0, 2], 8) and uniform(x[:, 0, 3] - 8, 8)
    assert abs(np.corrcoef(x[:, 0, 3], x[:, 0, 4])[0, 1]) < 0.1


def test_joint_recall_follows_the_law_of_hax() -> None:
    task: Any = make("joint-recall", contexts=(5, 8), keys=(5, 8), values=16, room=(8, 8))
    batch = task.batch(range(1500))
    given = RETRIEVAL["joint_tokens"]
    theirs = np.select([given == 1, given == 4, given == 3], [0, 1, 2], given - 7)
    measured: list[list[Any]] = [[], []]
    for found, x in zip(measured, (batch.x, theirs), strict=True):
        cell, written, asked = task._cells(x)
        contexts = ((x >= 27).sum(axis=1)) // 2
        found += [contexts, asked.sum(axis=1) / contexts, x[:, 3], np.argmax(x == 1, axis=1)]
        found += [[row.max() for row in np.where(asked, np.arange(x.shape[1]), 0)]]
        first = [int(np.flatnonzero(row)[0]) for row in asked]
        home = [int(np.flatnonzero(w & (c == c[f]))[0]) for c, w, f in zip(cell, written, first, strict=True)]
        found += [np.array(first) - home]
    for number, (one, two) in enumerate(zip(*measured, strict=True)):
        assert same_law(one, two) and same_mean(one, two), number
    assert uniform(np.array(measured[0][0]) - 5, 4) and uniform(np.array(measured[0][1]).astype(int) - 5, 4)
    assert np.array_equal(batch.mask, batch.x != 2)


def test_joint_recall_draws_tokens_from_all_of_the_room_in_new_orders() -> None:
    x = make("joint-recall", contexts=4, keys=4, room=(8, 8)).batch(range(4000)).x
    contexts, keys = x[:, 1::9][:, :4] - 27, x[:, 2:10:2] - 19
    assert uniform(contexts[:, 0], 8) and uniform(keys[:, 0], 8) and uniform(x[:, 3] - 3, 16)
    again = x[:, 38::9] - 27
    assert (np.sort(again) == np.sort(contexts)).all()
    assert uniform((again[:, :1] == contexts).argmax(axis=1), 4)
    second = x[:, 39:47:2] - 19
    assert uniform((second[:, :1] == keys).argmax(axis=1), 4)
    assert (np.sort(second) == np.sort(keys)).all()


def test_k_hop_follows_sanfords_law() -> None:
    batch = make("k-hop").batch(range(3000))
    x, y = HOPS["khop_x"], HOPS["khop_y"]
    assert uniform(batch.x[:, 0], 17) and uniform(batch.x[:, 5] - 17, 4)
    assert (batch.x[:, 2:] != batch.x[:, 1:-1]).all()
    assert uniform((batch.x[:, 2:] - batch.x[:, 1:-1]) % 4 - 1, 3)
    assert same_mean((batch.y == 4).mean(axis=1), (y == 21).mean(axis=1))
    for low, high, share in ((1, 1, 0.04), (8, 8, 0.25), (16, 16, 0.50)):
        found = make("k-hop", asked=(low, high)).batch(range(800)).y[:, 1:]
        assert (found == 4).mean() == pytest.approx(share, abs=0.025)
    assert same_law(batch.x[:, 0], x[:, 0])
    free = ((batch.y == 4) | (batch.y == 5)).mean()
    assert free == pytest.approx(0.257, abs=0.01)


def sizes_of(tokens: np.ndarray, vocab: int) -> list[int]:
    """Tokens of each word."""
    ends = np.flatnonzero((tokens > vocab) & (tokens <= 2 * vocab))
    return np.diff(ends, prepend=-1).tolist()


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", DEPO)
def test_depo_follows_the_published_law(name: str, split: str) -> None:
    task = make("depo", **DEPO[name])
    vocab, hops = DEPO[name]["words"][0], DEPO[name]["hops"]  # type: ignore[index]
    ours = [x[mask] for x, mask in zip(*task.batch(range(600), split=split)[::2], strict=True)]
    measured: list[list[Any]] = [[], [], [], [], []]
    theirs: list[list[Any]] = [[], [], [], [], []]
    for found, rows in ((measured, ours), (theirs, [x for x, _ in published_depo(name, split)])):
        for x in rows:
            asked = (x > 2 * vocab) & (x <= 2 * vocab + hops)
            begin = int(asked.argmax())
            sizes = sizes_of(x[1:begin], vocab)
            found[0].append(len(sizes) // 2)
            found[1].append(int(asked.sum()))
            found[2] += (x[asked] - 2 * vocab).tolist()
            found[3].append(float(np.mean(sizes)))
            found[4] += x[1:begin].tolist()
    for number, (one, two) in enumerate(zip(measured, theirs, strict=True)):
        assert same_law(one, two) and same_mean(one, two), number
    if split == "test":
        assert set(measured[0]) == {DEPO[name]["nodes"][1]}  # type: ignore[index]
        assert set(measured[2]) == {2**i for i in range(6) if 2**i <= hops}
    else:
        assert uniform(np.array(measured[2]) - 1, hops)


def test_depo_draws_numbers_of_nodes_by_their_weights() -> None:
    task = make("depo", nodes=(3, 75), words=(100, 1, 1), queries=1)
    batch = task.batch(range(6000))
    nodes = (batch.mask.sum(axis=1) - 1 - 4) // 2 if batch.mask is not None else np.zeros(1)
    weights = 1 / (np.arange(3, 76) + 75**0.5)
    assert stats.chisquare(np.bincount(nodes, minlength=76)[3:], weights / weights.sum() * 6000).pvalue > UNLIKELY
    for hops, steps in ((32, {1, 2, 4, 8, 16, 24, 32}), (6, {1, 2, 4, 6})):
        tested = make("depo", nodes=3, hops=hops, words=(100, 1, 1)).batch(range(400), split="test").x
        assert set((tested[(tested > 200) & (tested <= 200 + hops)] - 200).tolist()) == steps


def test_depo_orders_edges_and_questions_at_random() -> None:
    x = make("depo", nodes=4, hops=3, queries=4, words=(4, 1, 1), law="clean").batch(range(4000), split="test").x
    assert uniform(x[:, 1] - 5, 4) and uniform(x[:, 10] - 5, 4) and uniform(x[:, 9] - 9, 3)
    follows = x[:, 3] == x[:, 2]
    assert follows.mean() == pytest.approx(1 / 3, abs=0.03)


def test_forward_variables_have_the_hops_of_the_specification() -> None:
    task = make("variable-tracking")
    batch = task.batch(range(3000))
    hops = task.slices(batch)["hops"][batch.y >= 0]
    shares = np.bincount(hops, minlength=5)[1:5] / len(hops)
    assert shares == pytest.approx([0.56, 0.26, 0.11, 0.05], abs=0.01)
    assert uniform(batch.x[:, ::2], 16) and (batch.x[:, 1] >= 16).all() and uniform(batch.x[:, 1] - 16, 16)
    late = batch.x[:, 41::2] < 16
    assert late.mean() == pytest.approx(0.5, abs=0.01)
    known = np.array([[token in row[:60:2] for token in range(16)] for row in batch.x.tolist()])
    source = batch.x[:, 61]
    copies = source < 16
    rank = (np.cumsum(known, axis=1) - 1)[np.arange(3000), source * copies][copies] / known.sum(axis=1)[copies]
    assert known[np.arange(3000), source * copies][copies].all() and rank.mean() == pytest.approx(0.47, abs=0.03)


def test_shuffled_variables_are_in_any_order() -> None:
    batch = make("variable-tracking", order="shuffled", chains=2, hops=2, variables=9, noise=0.5).batch(range(4000))
    assert batch.x.shape == (4000, 2 * 9 + 6)
    filler = batch.x[:, 0:18:2] == 25
    assert (filler.sum(axis=1) == 3).all() and uniform(np.nonzero(filler)[1], 9)
    assert np.array_equal(filler, batch.x[:, 1:18:2] == 25)
    assert uniform(batch.x[:, 18], 9) and uniform(batch.y[:, 18], 16)
    assert all(len(set(row)) == 2 for row in batch.y[:, 18:].tolist())
    constant = (batch.x[:, 1:18:2] >= 9) & ~filler
    assert (constant.sum(axis=1) == 2).all() and uniform(np.nonzero(constant)[1], 9)


@pytest.mark.parametrize(("name", "law"), [("adding", "halves"), ("adding_tcn", "anywhere")])
def test_adding_follows_the_published_laws(name: str, law: str) -> None:
    x = make("adding", length=100, law=law).batch(range(6000)).x
    theirs = CAPACITY[f"{name}_x"]
    marks, published = (np.nonzero(given[..., 1])[1].reshape(-1, 2) for given in (x, theirs))
    if law == "halves":
        assert uniform(marks[:, 0], 50) and uniform(marks[:, 1] - 50, 50)
    else:
        assert uniform(marks, 100)
    for column in range(2):
        assert same_law(marks[:, column], published[:, column])
    assert stats.kstest(x[:, :5, 0].ravel(), "uniform").pvalue > UNLIKELY
    odd = make("adding", length=5).batch(range(3000)).x
    assert uniform(np.nonzero(odd[..., 1])[1].reshape(-1, 2)[:, 0], 2)


@pytest.mark.parametrize(("law", "facts"), [("pair", 256), ("mad", 127)])
def test_memorization_asks_one_map_everywhere(law: str, facts: int) -> None:
    task: Any = make("memorization", law=law, facts=facts, pairs=8)
    other: Any = make("memorization", law=law, facts=facts, pairs=3)
    assert np.array_equal(task.table(), other.table())
    table: dict[tuple[int, ...], int] = {}
    slot = 3 if law == "pair" else 2
    for seed in (0, 5):
        for split in ("train", "test"):
            batch = task.batch(range(400), seed, split)
            for x, y in zip(batch.x.reshape(-1, slot), batch.y.reshape(-1, slot), strict=True):
                assert table.setdefault(tuple(x[:-1].tolist()), y[-1]) == y[-1]
    assert len(table) == facts
    asked = np.array(list(table))
    assert uniform(task.batch(range(1000)).x[:, 0], 16 if law == "pair" else facts) and len(asked) == facts
    if law == "mad":
        assert len(set(table.values())) == facts and set(table.values()) <= set(range(facts, 2 * facts + 1))
    else:
        assert uniform(list(table.values()), 64)
    assert not task.table().flags.writeable


def test_compression_is_uniform_and_ends_with_the_mark() -> None:
    x = make("compression", length=9, vocab=6).batch(range(3000)).x
    assert uniform(x[:, :-1], 5) and (x[:, -1] == 5).all()
    assert uniform(x[:, 0] * 5 + x[:, 7], 25)
