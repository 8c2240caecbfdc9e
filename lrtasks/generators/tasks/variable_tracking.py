from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import Uniforms, UniformTask, gathered, last_where, spread
from lrtasks.spec import IGNORED, Batch, Spec

FORWARD: dict[str, Any] = {"order": "forward", "statements": 12, "variables": 6, "constants": 8}
FORWARD |= budget(batch_size=64, lr=3e-3)

SHUFFLED: dict[str, Any] = {"order": "shuffled", "chains": 4}
SHUFFLED |= budget(batch_size=64, lr=3e-3)


@registry.register("variable-tracking")
@dataclass(frozen=True)
class VariableTracking(UniformTask):
    """Statements assign a constant or another variable to a variable: return the constant that a variable has.

    Tokens: N variables from 0, then ``constants`` constants. Classes are the constants, from 0. A statement is two
    tokens: a target and a source, whose value the target gets.

    ``order="forward"``, N = ``variables``: there are ``statements`` statements, each with a uniform variable as target.
    The source is a uniform constant or, with probability 1/2 once two variables have a value, a variable, uniform among
    the variables that have a value. Each source that is a variable is labelled with its current value, which the target
    gets. A table of values, read once from left to right, solves the task.

    ``order="shuffled"``: there are ``chains`` chains with distinct constants. A chain is x_0 = c, x_1 = x_0, ...,
    x_h = x_(h-1) with h = ``hops``. The variables of all chains are distinct, drawn from all N = max(``variables``,
    chains (h + 1)). The statements of all chains come in random order. Mixed among them are ``noise`` times as many
    fillers: statements of two filler tokens (the last token of the vocabulary). Then every variable of the chains comes
    once, in random order, with its chain's constant as the label. A table of values, read once from left to right, does
    not solve the task.

    Source: after the variable tracking of Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context
    Language Models?" (arXiv:2404.06654), section 3.2. RULER has one chain in text, so every variable in the text is an
    answer. Both distributions are ours.

    >>> VariableTracking(variables=3, constants=6).answer([0, 8, 1, 4, 2, 0, 0, 1, 1, 2]).tolist()
    [-100, -100, -100, -100, -100, 5, -100, 1, -100, 5]
    >>> task = VariableTracking(order="shuffled", chains=2, hops=1, variables=4, constants=4)
    >>> task.answer([3, 0, 1, 6, 0, 4, 2, 1, 0, 2, 3, 1]).tolist()[-4:]
    [0, 2, 0, 2]
    """

    group: ClassVar[str] = "hops"
    presets: ClassVar[Presets] = {
        "small": FORWARD,
        "forward": FORWARD,
        "small-hard": {"order": "forward", "statements": 48, "variables": 16, "constants": 16},
        "shuffled": {**SHUFFLED, "hops": 1, "variables": 16, "constants": 8, **budget(steps=3000)},
        # 36 names: enough for chains of 8 hops, on which the model is tested
        "shuffled-hard": {**SHUFFLED, "hops": 4, "variables": 36, "constants": 16},
        # no paper trains on this task; RULER asks language models at lengths from 4,096
        "paper": {"order": "forward", "statements": 2048, "variables": 64, "constants": 64},
    }

    order: Literal["forward", "shuffled"] = parameter(
        "forward", "order of statements: every source already has a value (forward), or chains in random order"
    )
    statements: int = parameter(48, "forward: number of statements", at_least=3, at_most=MAX_LENGTH // 2)
    variables: int = parameter(16, "variables N; shuffled: chains (hops + 1) if more", at_least=2, at_most=2**16)
    constants: int = parameter(16, "number of constants", at_least=2, at_most=2**16)
    chains: int = parameter(4, "shuffled: number of chains", at_least=1, at_most=2**10)
    hops: int = parameter(4, "shuffled: statements from the first to the last variable of a chain", at_least=0)
    noise: float = parameter(0.0, "shuffled: filler statements for each statement", at_least=0, at_most=64)

    def check(self) -> None:
        if self.order == "shuffled":
            if self.chains > self.constants:
                self.refuse(f"chains must be at most constants ({self.constants}), found {self.chains}")
            if self._used > 2**16:
                self.refuse(f"chains (hops + 1) must be at most {2**16:,}, found {self._used:,}")

    @property
    def _used(self) -> int:
        """Number of variables of a sample with order ``shuffled``."""
        return self.chains * (self.hops + 1)

    @property
    def _names(self) -> int:
        return self.variables if self.order == "forward" else max(self.variables, self._used)

    @property
    def _statements(self) -> int:
        return self.statements if self.order == "forward" else self._used + round(self.noise * self._used)

    @property
    def _filler(self) -> int:
        return self._names + self.constants

    @property
    def input(self) -> Spec:
        if self.order == "forward":
            return Spec("token", 2 * self.statements, self._filler)
        return Spec("token", 2 * self._statements + self._used, self._filler + 1)

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, self.constants)

    def made(self, u: Uniforms) -> Batch:
        x = self._forward(u) if self.order == "forward" else self._shuffled(u)
        return Batch(x, self.label_all(x))

    def _forward(self, u: Uniforms) -> np.ndarray:
        count, rows = self.statements, np.arange(len(u))
        target, constant = u.whole(self.variables, count), self.variables + u.whole(self.constants, count)
        copies, pick = u.take(count) < 0.5, u.take(count)
        x = np.empty((len(u), 2 * count), dtype=np.int64)
        x[:, ::2] = target
        known = np.zeros((len(u), self.variables), dtype=np.int64)  # variables with a value, in order of time
        has_value = np.zeros((len(u), self.variables), dtype=bool)
        number = np.zeros(len(u), dtype=np.int64)
        for at in range(count):
            source = known[rows, (pick[:, at] * number).astype(np.int64)]
            x[:, 2 * at + 1] = np.where(copies[:, at] & (number >= 2), source, constant[:, at])
            new = ~has_value[rows, target[:, at]]
            known[rows[new], number[new]] = target[new, at]
            has_value[rows, target[:, at]] = True
            number += new
        return x

    def _shuffled(self, u: Uniforms) -> np.ndarray:
        rows, row = len(u), np.arange(len(u))[:, None]
        name = u.order(self._names)[:, : self._used].reshape(rows, self.chains, self.hops + 1)
        constant = self._names + u.distinct(self.constants, self.chains)
        source = np.concatenate([constant[..., None], name[..., :-1]], axis=2)
        pairs = np.full((rows, self._statements, 2), self._filler)
        pairs[:, : self._used] = np.stack([name, source], axis=-1).reshape(rows, self._used, 2)
        pairs = pairs[row, u.order(self._statements)]
        asked = name.reshape(rows, self._used)[row, u.order(self._used)]
        return np.concatenate([pairs.reshape(rows, -1), asked], axis=1)

    def label_all(self, x: np.ndarray) -> np.ndarray:
        y = np.full(x.shape, IGNORED)
        if self.order == "forward":
            value, hops, _ = self._read(x)
            y[:, 1::2] = np.where(hops > 0, value, IGNORED)
        else:
            found, _ = self._resolved(x)
            y[:, 2 * self._statements :] = found - self._names
        return y

    def _read(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return per statement: assigned value or -1, hops from its constant, statements since its source was set."""
        target, source = x[:, ::2], x[:, 1::2]
        rows = np.arange(len(x))
        now = np.stack([np.full((len(x), self.variables), fill) for fill in (-1, 0, 0)])  # value, hops, time
        found = np.empty((3, *target.shape), dtype=np.int64)
        for at in range(target.shape[1]):
            constant = source[:, at] - self.variables
            value, hops, time = now[:, rows, np.minimum(source[:, at], self.variables - 1)]
            new = np.where(constant >= 0, (constant, 0 * hops, 0 * time), (value, hops + 1, at - time))
            found[:, :, at] = new
            new[2] = at
            now[:, rows, target[:, at]] = new
        return found[0], found[1], found[2]

    def _resolved(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each question the token at the end of its chain, and the number of steps of the chain minus 1."""
        end = 2 * self._statements
        # each token leads to itself, a variable to its source
        leads = np.tile(np.arange(self.input.width), (len(x), 1))
        np.put_along_axis(leads, x[:, 0:end:2], x[:, 1:end:2], axis=1)
        at = x[:, end:]
        steps = np.zeros(at.shape, dtype=np.int64)
        for _ in range(self._used):
            further = np.take_along_axis(leads, at, axis=1)
            if np.array_equal(further, at):
                break
            steps += further != at
            at = further
        return at, steps - 1

    def verify(self, tokens: np.ndarray) -> None:
        if self.order == "forward":
            self.divide(tokens, 2)
            self.allow(tokens[::2], 0, self.variables, "targets of statements", 0, 2)
            value, _, _ = self._read(tokens[None])
            if value.min() < 0:
                at = 2 * int(value[0].argmin()) + 1
                self.refuse(f"variable {tokens[at]} at position {at} has no value yet")
            return
        end = 2 * self._statements
        if len(tokens) != self.input.length:
            self.refuse(f"an input has {self.input.length} tokens, found {len(tokens)}")
        target, source = tokens[0:end:2], tokens[1:end:2]
        unpaired = (target == self._filler) != (source == self._filler)
        if unpaired.any():
            at = 2 * int(unpaired.argmax())
            self.refuse(f"filler ({self._filler}) comes in pairs, found {tokens[at]} {tokens[at + 1]} at position {at}")
        real = target[target < self._filler]
        self.allow(real, 0, self._names, "targets of statements")
        self.allow(tokens[end:], 0, self._names, "variables that are asked", end)
        if len(set(real.tolist())) < len(real):
            again = max(real.tolist(), key=real.tolist().count)
            self.refuse(f"variable {again} gets a value twice")
        found, _ = self._resolved(tokens[None])
        if found.min() < self._names:
            at = int((found[0] < self._names).argmax())
            self.refuse(f"variable {tokens[end + at]}, asked at position {end + at}, has no constant")

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent constant, and the last constant so far (forward) or the first (shuffled)."""
        if self.order == "forward":
            last = self.rule(lambda x: gathered(x, last_where(x >= self._names)) - self._names)
            return {**super().baselines(), "last-constant": last}

        def first(x: np.ndarray) -> np.ndarray:
            place = ((x >= self._names) & (x < self._filler)).argmax(axis=1)[:, None]
            return np.take_along_axis(x, place, axis=1) - self._names

        return {**super().baselines(), "first-constant": self.rule(first)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by hops from the constant; forward also by tokens since the source was set, in octaves."""
        shape = batch.y.shape
        if self.order == "forward":
            _, hops, since = self._read(batch.x)
            odd = slice(1, None, 2)
            return {"hops": spread(hops, shape, odd), "distance": spread(octave(2 * since), shape, odd)}
        return {"hops": spread(self._resolved(batch.x)[1], shape, slice(2 * self._statements, None))}

    def tests(self) -> dict[str, Task]:
        """Return tests: 2 and 4 times the statements (forward); 2, 4 and 8 hops if variables suffice (shuffled)."""
        if self.order == "forward":
            return self.scaled("statements", by=(2, 4))
        room = {hops for hops in (2, 4, 8) if hops != self.hops and self.chains * (hops + 1) <= self._names}
        return self.further({f"hops-{hops}": {"hops": hops, "variables": self._names} for hops in sorted(room)})

    def text(self, batch: Batch, index: int) -> str:
        """Return statements such as ``x2=x0`` or ``x1=3``; values in brackets (forward) or questions follow."""
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        end = 2 * self._statements

        def name(token: int) -> str:
            return f"x{token}" if token < self._names else "." if token == self._filler else str(token - self._names)

        values = [f"({label})" if label >= 0 else "" for label in y]
        pairs = (f"{name(x[at])}={name(x[at + 1])}{values[at + 1]}" for at in range(0, end, 2))
        asked = (f"x{x[at]}:{y[at]}" for at in range(end, len(x)))
        return " ".join(pairs) + (" | " + " ".join(asked) if self.order == "shuffled" else "")
