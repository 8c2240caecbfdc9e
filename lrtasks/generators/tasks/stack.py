"""Stack: push values on named stacks, and say what each pop takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.baselines import Baseline, MajorityClass
from lrtasks.generators.tokens import Rule, checked_tokens, last_where, octaves_of
from lrtasks.spec import IGNORED, Batch, Sample, Spec


@registry.register("stack")
@dataclass(frozen=True)
class Stack(Task):
    """Push values on named stacks; at a pop, return the value that it removes.

    With V = ``values`` and S = ``stacks``: values are tokens 0..V-1, stacks V..V+S-1, PUSH is V+S, POP V+S+1 and the
    blank V+S+2. Each of ``operations`` has three tokens: action, stack, value. The first is a push; then the action is
    that of the operation before with probability ``stay``, else the other, and a pop where all stacks are empty becomes
    a push. A push draws stack and value uniformly, a pop a stack uniformly from those that are not empty. After a pop
    comes the value that it took (``feed="teacher"``) or the blank. Label, at the stack of each pop: that value.

    Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture" (arXiv:2510.26692), section 5.1
    (64 stacks, 256 to 2,048 tokens). There is no code; how its actions are drawn is not known, so this law is ours.

    >>> Stack(stacks=2, values=4).answer([6, 4, 3, 6, 5, 1, 6, 4, 2, 7, 4, 8, 7, 4, 8]).tolist()[9:]
    [-100, 2, -100, -100, 3, -100]
    """

    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"
    group: ClassVar[str] = "structure"

    presets: ClassVar[Presets] = {
        "small": {"stacks": 4, "values": 16, "operations": 42, "stay": 0.8, "feed": "blank"},
        # Kimi Linear: 1,024 tokens, at most 20,000 steps.
        "paper": {"budget.steps": 20_000, "budget.batch_size": 64, "budget.lr": 1e-3, "budget.eval_every": 1000},
    }

    stacks: int = parameter(64, "number of stacks S", at_least=1, at_most=2**16)
    values: int = parameter(64, "number of values V", at_least=1, at_most=2**16)
    operations: int = parameter(341, "number of operations; three tokens each", at_least=2, at_most=MAX_LENGTH // 3)
    stay: float = parameter(0.5, "probability to push or pop as the operation before", at_least=0, at_most=1)
    feed: Literal["teacher", "blank"] = parameter("teacher", "token after a pop: the value that it took, or a blank")

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

    def answer(self, x: np.ndarray) -> np.ndarray:
        """Labels of a list of operations; what stands after a pop changes none of them."""
        push, pop, blank = range(self.values + self.stacks, self.values + self.stacks + 3)
        x = checked_tokens(self.name, x, blank + 1)
        if len(x) % 3:
            raise UsageError(f"stack: an input has three tokens for each operation, found {len(x)} tokens")
        contents: dict[int, list[int]] = {}
        y = np.full(len(x), IGNORED)
        for place, (action, stack, value) in enumerate(x.reshape(-1, 3).tolist()):
            if action not in (push, pop):
                raise UsageError(f"stack: PUSH ({push}) or POP ({pop}) must stand at {3 * place}, found {action}")
            if not self.values <= stack < push:
                raise UsageError(
                    f"stack: a stack ({self.values}..{push - 1}) must stand at {3 * place + 1}, found {stack}"
                )
            if value >= self.values and not (action == pop and value == blank):
                raise UsageError(f"stack: a value (0..{self.values - 1}) must stand at {3 * place + 2}, found {value}")
            if action == push:
                contents.setdefault(stack, []).append(value)
            elif not contents.get(stack):
                raise UsageError(f"stack: the pop at {3 * place} takes from stack {stack}, which is empty")
            else:
                y[3 * place + 1] = contents[stack].pop()
        return y

    def tests(self) -> Mapping[str, Task]:
        """2, 4 and 8 times the operations."""
        return self.further({f"{n}x": {"operations": n * self.operations} for n in (2, 4, 8)})

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent value, the value pushed last, and the value pushed last on this stack, taken or not."""
        return {
            "majority": MajorityClass(self.values),
            "last-push": Rule(self._last_push),
            "last-push-of-stack": Rule(self._last_push_of_stack),
        }

    def _last_push(self, batch: Batch) -> np.ndarray:
        _, _, values, pushes = self._columns(batch)
        last = np.maximum(last_where(pushes), 0)
        return np.repeat(np.take_along_axis(values, last, axis=1), 3, axis=1)

    def _last_push_of_stack(self, batch: Batch) -> np.ndarray:
        _, stacks, values, pushes = self._columns(batch)
        prediction = np.zeros(stacks.shape, dtype=np.int64)
        for row in range(len(stacks)):
            last: dict[int, int] = {}
            for place, (stack, value, push) in enumerate(
                zip(stacks[row].tolist(), values[row].tolist(), pushes[row].tolist(), strict=True)
            ):
                if push:
                    last[stack] = value
                prediction[row, place] = last[stack]
        return np.repeat(prediction, 3, axis=1)

    def _columns(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Actions, stacks, values, and where an operation pushes; ``(batch, operations)`` each."""
        actions, stacks, values = (batch.x[:, column::3] for column in range(3))
        return actions, stacks, values, actions == self.values + self.stacks

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Whether the item is not the one pushed last on its stack (buried: 1), and operations since its push."""
        _, stacks, _, pushes = self._columns(batch)
        buried, distance = np.zeros((2, *stacks.shape), dtype=np.int64)
        for row in range(len(stacks)):
            contents: dict[int, list[int]] = {}
            last: dict[int, int] = {}
            for place, (stack, push) in enumerate(zip(stacks[row].tolist(), pushes[row].tolist(), strict=True)):
                if push:
                    contents.setdefault(stack, []).append(place)
                    last[stack] = place
                else:
                    item = contents[stack].pop()
                    buried[row, place], distance[row, place] = item != last[stack], place - item
        return {"buried": np.repeat(buried, 3, axis=1), "distance": octaves_of(np.repeat(distance, 3, axis=1))}

    def text(self, batch: Batch, index: int) -> str:
        """The operations: ``+A3`` pushes 3 on stack A, ``-A:3`` takes 3 from it; stacks beyond Z as numbers."""
        words = []
        for (action, stack, value), (_, taken, _) in zip(
            batch.x[index].reshape(-1, 3).tolist(), batch.y[index].reshape(-1, 3).tolist(), strict=True
        ):
            name = chr(ord("A") + stack - self.values) if self.stacks <= 26 else f"s{stack - self.values}:"
            words.append(f"+{name}{value}" if action == self.values + self.stacks else f"-{name}:{taken}")
        return " ".join(words)
