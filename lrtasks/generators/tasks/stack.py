from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, last_where, placed
from lrtasks.spec import IGNORED, Batch, Sample, Spec

BLANK = {"stay": 0.8, "feed": "blank"}


@registry.register("stack")
@dataclass(frozen=True)
class Stack(TokenTask):
    """Push values on named stacks; at a pop, return the value that it removes.

    Let V = ``values`` and S = ``stacks``. Tokens: values 0..V-1, stacks V..V+S-1, PUSH is V+S, POP V+S+1 and the blank
    V+S+2. Each of ``operations`` operations has three tokens: action, stack, value. The first action is a push. Each
    later action repeats the action before with probability ``stay``, else it is the other action; if all stacks are
    empty, a pop becomes a push. A push draws its stack and its value uniformly. A pop draws its stack uniformly from
    the stacks that are not empty. The third token of a pop is the value that it removes (``feed="teacher"``) or the
    blank. The label, at the stack token of each pop, is this value.

    Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture" (arXiv:2510.26692), section 5.1
    (64 stacks, 256 to 2,048 tokens). The paper has no code and does not say how actions are drawn; this
    distribution is ours.

    >>> Stack(stacks=2, values=4).answer([6, 4, 3, 6, 5, 1, 6, 4, 2, 7, 4, 8, 7, 4, 8]).tolist()[9:]
    [-100, 2, -100, -100, 3, -100]
    """

    group: ClassVar[str] = "structure"
    grows: ClassVar[tuple[str, ...]] = ("operations",)
    presets: ClassVar[Presets] = {
        "small": {"stacks": 2, "values": 4, "operations": 21, **BLANK, **budget(batch_size=64)},
        "small-hard": {"stacks": 4, "values": 16, "operations": 42, **BLANK},
        # Kimi Linear: 1,024 tokens, at most 20,000 steps.
        "paper": budget(steps=20_000, batch_size=64, lr=1e-3, eval_every=1000),
    }

    stacks: int = parameter(64, "number of stacks S", at_least=1, at_most=2**16)
    values: int = parameter(64, "number of values V", at_least=1, at_most=2**16)
    operations: int = parameter(341, "number of operations; three tokens each", at_least=2, at_most=MAX_LENGTH // 3)
    stay: float = parameter(
        0.5, "probability of repeating the previous action (push or pop); below 1", at_least=0, at_most=1
    )
    feed: Literal["teacher", "blank"] = parameter("teacher", "token after a pop: the popped value, or a blank")

    def check(self) -> None:
        if self.stay == 1:
            self.refuse("with stay 1, no operation is a pop, so nothing is asked; stay must be below 1")

    @property
    def input(self) -> Spec:
        return Spec("token", 3 * self.operations, self.values + self.stacks + 3)

    @property
    def target(self) -> Spec:
        return Spec("token", 3 * self.operations, self.values)

    def sample(self, rng: np.random.Generator) -> Sample:
        count = self.operations
        push, pop, blank = range(self.values + self.stacks, self.values + self.stacks + 3)
        stays = (rng.random(count) < self.stay).tolist()
        chosen = rng.random(count).tolist()
        values = rng.integers(self.values, size=count).tolist()
        contents: list[list[int]] = [[] for _ in range(self.stacks)]
        filled: list[int] = []  # stacks that are not empty, in the order in which they were filled
        x: list[int] = []
        y: list[int] = []
        pushing = True
        for stay, where, value in zip(stays, chosen, values, strict=True):
            pushing = not filled or pushing == stay
            if pushing:
                stack = int(where * self.stacks)
                if not contents[stack]:
                    filled.append(stack)
                contents[stack].append(value)
                x += (push, self.values + stack, value)
                y += (IGNORED, IGNORED, IGNORED)
            else:
                place = int(where * len(filled))
                stack = filled[place]
                taken = contents[stack].pop()
                if not contents[stack]:
                    del filled[place]
                x += (pop, self.values + stack, taken if self.feed == "teacher" else blank)
                y += (IGNORED, taken, IGNORED)
        return Sample(np.array(x), np.array(y))

    def verify(self, tokens: np.ndarray) -> None:
        self.divide(tokens, 3)
        actions, stacks, values = tokens.reshape(-1, 3).T
        push = self.values + self.stacks
        self.allow(actions, push, push + 2, "actions (PUSH, POP)", 0, 3)
        self.allow(stacks, self.values, push, "stacks", 1, 3)
        blank = (actions == push + 1) & (values == push + 2)
        self.allow(np.where(blank, 0, values), 0, self.values, "values", 2, 3)

    def label_all(self, x: np.ndarray) -> np.ndarray:
        """Return the labels as the base class does. The third token of a pop changes no label."""
        rows = (((3 * pop + 1, row[[3 * push + 2]]) for pop, push, _ in self._taken(row)) for row in x)
        return placed(x.shape, rows, IGNORED)

    def _taken(self, x: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Yield operation numbers for each pop: the pop, the push of its value, and the last push on its stack."""
        contents: dict[int, list[int]] = {}
        last: dict[int, int] = {}
        for place, (action, stack, _) in enumerate(x.reshape(-1, 3).tolist()):
            if action == self.values + self.stacks:
                contents.setdefault(stack, []).append(place)
                last[stack] = place
            elif not contents.get(stack):
                self.refuse(f"the pop at {3 * place} takes from stack {stack}, which is empty")
            else:
                yield place, contents[stack].pop(), last[stack]

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent value, the last push, and the last push on this stack, whether popped or not."""

        def last_push(x: np.ndarray) -> np.ndarray:
            last = last_where(x[:, ::3] == self.values + self.stacks)
            return np.repeat(np.take_along_axis(x[:, 2::3], last, axis=1), 3, axis=1)

        def of_stack(x: np.ndarray) -> np.ndarray:
            rows = (((3 * pop + 1, row[[3 * last + 2]]) for pop, _, last in self._taken(row)) for row in x)
            return placed(x.shape, rows)

        rules = {"last-push": self.rule(last_push), "last-push-of-stack": self.rule(of_stack)}
        return {**super().baselines(), **rules}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by buried (1: not the last push on its stack) and by operations since the push."""
        buried, distance = np.zeros((2, *batch.y.shape), dtype=np.int64)
        for row, tokens in enumerate(batch.x):
            for pop, push, last in self._taken(tokens):
                buried[row, 3 * pop + 1], distance[row, 3 * pop + 1] = push != last, pop - push
        return {"buried": buried, "distance": octave(distance)}

    def text(self, batch: Batch, index: int) -> str:
        """Return the operations: ``+A3`` pushes 3 on stack A, ``-A:3`` pops it; stacks are numbered if over 26."""
        lettered, words = self.stacks <= 26, []
        for (action, stack, value), (_, taken, _) in zip(
            batch.x[index].reshape(-1, 3).tolist(), batch.y[index].reshape(-1, 3).tolist(), strict=True
        ):
            name = chr(ord("A") + stack - self.values) if lettered else f"s{stack - self.values}"
            push = f"+{name}{value}" if lettered else f"+{name}:{value}"
            words.append(push if action == self.values + self.stacks else f"-{name}:{taken}")
        return " ".join(words)
