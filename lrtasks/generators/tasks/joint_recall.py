from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import Uniforms, UniformTask, earlier, gathered, last_where
from lrtasks.spec import IGNORED, Batch, Spec

BEGIN, SEP, PAD, FIRST = 0, 1, 2, 3
"""Tokens of ``joint-recall``; FIRST is the first value token."""
SMALL: dict[str, Any] = {"values": 16, "room": (8, 8)}


@registry.register("joint-recall")
@dataclass(frozen=True)
class JointRecall(UniformTask):
    """Read a table of values by context and key; then return each value when it is queried in another order.

    Tokens: BEGIN 0, SEP 1, PAD 2, then V = ``values`` value tokens from 3, key tokens from 3 + V, and context tokens
    after the key tokens. ``room`` holds two numbers: of context tokens and of key tokens. Each sample has C contexts
    and K keys. C is uniform over ``contexts`` and K over ``keys``; their tokens are distinct and drawn at random. Every
    pair of a context and a key has a value, independent and uniform.

    A sample is BEGIN, a table, SEP, the same table in new random orders, and padding on the right. The table lists the
    contexts in random order: the context token, then all keys in random order, each followed by its value. Labels: at
    each key of the second table its value, which is also the next input token.

    Source: Zhan et al., "Overcoming Long-Context Limitations of State-Space Models via Context-Dependent Sparse
    Attention" (arXiv:2507.00449), section 3, code DeepGraphLearning/HAX. The code numbers tokens differently (BEGIN 1,
    PAD 3, SEP 4, values from 10), and it always takes the first C contexts and the first K keys of ``room``.

    >>> task = JointRecall(contexts=2, keys=2, values=8, room=(2, 2))
    >>> BEGIN, SEP, k0, k1, c0, c1 = 0, 1, 11, 12, 13, 14
    >>> x = [BEGIN, c0, k1, 7, k0, 10, c1, k0, 5, k1, 7, SEP, c1, k1, 7, k0, 5, c0, k0, 10, k1, 7]
    >>> task.answer(x)[-10:].tolist()
    [-100, 7, -100, 5, -100, -100, 10, -100, 7, -100]
    """

    group: ClassVar[str] = "retrieval"
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "contexts": 2, "keys": 3, **budget(batch_size=64, lr=3e-3, steps=3000)},
        "small-hard": {**SMALL, "contexts": 4, "keys": 4},
        "paper": {"contexts": (5, 16), "keys": (5, 16)}
        | budget(steps=400_000, batch_size=64, lr=2e-3, eval_every=10_000),
    }

    contexts: int | tuple[int, int] = parameter((5, 16), "contexts C; two numbers: uniform between them", at_least=1)
    keys: int | tuple[int, int] = parameter((5, 16), "keys K; two numbers: uniform between them", at_least=1)
    values: int = parameter(16, "number of values V", at_least=2, at_most=2**16)
    room: tuple[int, int] = parameter(
        (16, 16), "number of context tokens and of key tokens in the vocabulary", at_least=1, at_most=1024
    )

    def check(self) -> None:
        for name, room in zip(("contexts", "keys"), self.room, strict=True):
            if self.span(name)[1] > room:
                self.refuse(f"{name} must be at most their number in room ({room}), found {getattr(self, name)}")

    @property
    def _first_key(self) -> int:
        return FIRST + self.values

    @property
    def _first_context(self) -> int:
        return self._first_key + self.room[1]

    @property
    def pad(self) -> int:
        return PAD

    @property
    def input(self) -> Spec:
        contexts, keys = self.span("contexts")[1], self.span("keys")[1]
        return Spec("token", 2 * contexts * (2 * keys + 1) + 2, self._first_context + self.room[0])

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, FIRST + self.values)

    def made(self, u: Uniforms) -> Batch:
        (low_c, contexts), (low_k, keys) = self.span("contexts"), self.span("keys")
        rows = len(u)
        count_c = low_c + u.whole(contexts - low_c + 1, 1)
        count_k = low_k + u.whole(keys - low_k + 1, 1)
        context = self._first_context + u.order(self.room[0])[:, :contexts]
        key = self._first_key + u.order(self.room[1])[:, :keys]
        value = (FIRST + u.whole(self.values, contexts * keys)).reshape(rows, contexts, keys)
        row = np.arange(rows)[:, None]
        parts = []
        for _ in range(2):
            # orders of the largest numbers; contexts and keys that the sample lacks come last
            c = np.argsort(u.take(contexts) + (np.arange(contexts) >= count_c), axis=1)
            noise = u.take(contexts * keys).reshape(rows, contexts, keys)
            k = np.argsort(noise + (np.arange(keys) >= count_k)[:, None], axis=2)
            part = np.empty((rows, contexts, 2 * keys + 1), dtype=np.int64)
            part[..., 0] = context[row, c]
            part[..., 1::2] = key[row[..., None], k]
            part[..., 2::2] = value[row[..., None], c[..., None], k]
            there = (np.arange(contexts) < count_c)[..., None] & (np.arange(2 * keys + 1) < 2 * count_k[..., None] + 1)
            parts += [(part.reshape(rows, -1), there.reshape(rows, -1))]
        one = np.ones((rows, 1), dtype=np.int64)
        padded = np.concatenate([BEGIN * one, parts[0][0], SEP * one, parts[1][0]], axis=1)
        mask = np.concatenate([one > 0, parts[0][1], one > 0, parts[1][1]], axis=1)
        # the sample's tokens move to the front and keep their order
        x = np.take_along_axis(np.where(mask, padded, PAD), np.argsort(~mask, axis=1, kind="stable"), axis=1)
        if low_c == contexts and low_k == keys:
            return Batch(x, self.label_all(x))
        return Batch(x, self.label_all(x), np.arange(x.shape[1]) < mask.sum(axis=1, keepdims=True))

    def _cells(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return at each position: the cell of the table (0 if no key), whether it is written, whether it is asked."""
        is_context = x >= self._first_context
        is_key = (x >= self._first_key) & ~is_context
        context = gathered(x, last_where(is_context), 0)
        second = np.cumsum(x == SEP, axis=1) > 0
        return np.where(is_key, context * self.input.width + x, 0), is_key & ~second, is_key & second

    def label_all(self, x: np.ndarray) -> np.ndarray:
        cell, written, asked = self._cells(x)
        last, _ = earlier(cell, written)
        return np.where(asked, gathered(x, np.where(last >= 0, last + 1, -1)), IGNORED)

    def verify(self, tokens: np.ndarray) -> None:
        """Check for BEGIN, a table, SEP, a table and padding, and that no cell of the table has two values."""
        kinds = np.searchsorted([SEP, PAD, FIRST, self._first_key, self._first_context], tokens, side="right")
        names = ("BEGIN", "SEP", "PAD", "a value", "a key", "a context")
        begin, sep, pad, value, key, context = range(6)
        follow = {begin: {context}, sep: {context}, pad: {pad}, key: {value}, context: {key}}
        if kinds[0] != begin:
            self.refuse(f"an input begins with BEGIN (0), found {names[kinds[0]]}")
        seen_sep = False
        for at, (one, two) in enumerate(zip(kinds[:-1].tolist(), kinds[1:].tolist(), strict=True), 1):
            allowed = follow.get(one, {key, context, pad} if seen_sep else {key, context, sep})
            if two not in allowed:
                listed = " or ".join(names[kind] for kind in sorted(allowed))
                self.refuse(f"{listed} must follow {names[one]}, found {names[two]} at position {at}")
            seen_sep = seen_sep or two == sep
        cell, written, asked = self._cells(tokens[None])
        last, _ = earlier(cell, written)
        given, now = gathered(tokens[None], np.where(last >= 0, last + 1, -1))[0], np.append(tokens[1:], IGNORED)
        changed = (written | asked)[0] & (given >= 0) & (now >= 0) & (given != now)
        if changed.any():
            at = int(changed.argmax())
            self.refuse(f"key {tokens[at]} at position {at} has two values in its context, {given[at]} and {now[at]}")

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent value, a random value of the same key, and a random value of the same context."""
        key, context = (self.rule(self._alike, key=key) for key in (True, False))
        return {**super().baselines(), "same-key": key, "same-context": context}

    def _alike(self, x: np.ndarray, key: bool) -> np.ndarray:
        cell, written, _ = self._cells(x)
        cue = np.where(cell > 0, cell % self.input.width if key else cell // self.input.width, 0)
        _, count = earlier(cue, written)
        back = 1 + (np.random.default_rng(0).random(x.shape) * count).astype(np.int64)
        last, _ = earlier(cue, written, np.minimum(back, count))
        return gathered(x, np.where(last >= 0, last + 1, -1))

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by distance back to the cell in the first table, in octaves, and by number of cells C·K."""
        cell, written, asked = self._cells(batch.x)
        last, _ = earlier(cell, written)
        distance = np.where(asked & (last >= 0), np.arange(batch.x.shape[1]) - last, 0)
        return {"distance": octave(distance), "cells": asked.sum(axis=1, keepdims=True)}

    def tests(self) -> dict[str, Task]:
        """Return tests with twice the keys, twice the contexts, and both, named ``CxK``, as far as ``room`` allows."""
        contexts, keys = self.span("contexts")[1], self.span("keys")[1]
        sizes = [(contexts, 2 * keys), (2 * contexts, keys), (2 * contexts, 2 * keys)]
        return self.further({f"{c}x{k}": {"contexts": c, "keys": k} for c, k in sizes})

    def text(self, batch: Batch, index: int) -> str:
        """Return the table as ``c0 k1:v4 k0:v7``, then the questions with their answers as ``k0=v7``."""
        x, words, sign = batch.x[index].tolist(), [], ":"
        for at, token in enumerate(x):
            if token >= self._first_context:
                words.append(f"c{token - self._first_context}")
            elif token >= self._first_key:
                words.append(f"k{token - self._first_key}{sign}v{x[at + 1] - FIRST}")
            elif token == SEP:
                words.append("|")
                sign = "="
        return " ".join(words)
