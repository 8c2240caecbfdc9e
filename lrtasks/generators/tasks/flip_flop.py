from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, gathered, last_where
from lrtasks.spec import IGNORED, Batch, Sample, Spec

WRITE, READ, IGNORE, ZERO, ONE, BLANK = range(6)

SYMBOLS = "wri01_"


@registry.register("flip-flop")
@dataclass(frozen=True)
class FlipFlop(TokenTask):
    """Return the bit that was written last, whatever came after it.

    Each of ``instructions`` instructions is a letter and a bit. The first letter is w (write), the last is r (read).
    Each other letter is i (ignore) with probability ``ignore``, else w or r with equal probability, independently. The
    bit after w and i is uniform. The bit after r is the bit that was written last, and it is the label at the r.
    Tokens: w 0, r 1, i 2, bit 0 is 3, bit 1 is 4. Source: Liu et al., "Exposing Attention Glitches with Flip-Flop
    Language Modeling" (arXiv:2306.00946), section 3; token numbers of the dataset synthseq/flipflop.

    In the published task, the input contains the answer after each read. If the next instruction is a read, too, its
    answer is therefore trivial. With ``clean`` (off by default) the input has a blank, token 5, in place of each
    answer.

    >>> task = FlipFlop(instructions=5)
    >>> task.answer([0, 4, 2, 3, 1, 4, 2, 3, 1, 4]).tolist()
    [-100, -100, -100, -100, 4, -100, -100, -100, 4, -100]
    """

    group: ClassVar[str] = "state"
    presets: ClassVar[Presets] = {
        # The sparse test matters most. Good models rarely make errors on it, so there are many test samples.
        "small": {"instructions": 128, "clean": True, **budget(batch_size=32, steps=1500, test_batches=100)},
        # Liu et al.: 10,000 steps of 16 sequences of 512 tokens, AdamW. Their dataset has 160,000 sparse sequences; the
        # sparse test here has 4,000.
        "paper": budget(steps=10_000, batch_size=16, lr=3e-4, weight_decay=0.1, schedule="linear", warmup_steps=50)
        | budget(eval_every=500, val_batches=20, test_batches=1000),
    }

    instructions: int = parameter(256, "number of instructions; two tokens each", at_least=2, at_most=MAX_LENGTH // 2)
    ignore: float = parameter(0.8, "probability of an ignore instruction", at_least=0, at_most=1)
    ignore_tests: tuple[float, float] = parameter(
        (0.98, 0.1), "probability of an ignore instruction in the further tests sparse and dense", at_least=0, at_most=1
    )
    clean: bool = parameter(False, "a blank in place of the bit after each read")

    @property
    def input(self) -> Spec:
        return Spec("token", 2 * self.instructions, BLANK + self.clean)

    @property
    def target(self) -> Spec:
        return Spec("token", 2 * self.instructions, BLANK)

    def sample(self, rng: np.random.Generator) -> Sample:
        count = self.instructions
        chance = rng.random(count)
        letters = np.where(chance < (1 - self.ignore) / 2, WRITE, READ)
        letters[chance >= 1 - self.ignore] = IGNORE
        letters[0], letters[-1] = WRITE, READ
        written = rng.integers(ZERO, BLANK, size=count)
        answers = BLANK if self.clean else written[last_where(letters == WRITE)]
        x = np.empty(2 * count, dtype=np.int64)
        x[::2] = letters
        x[1::2] = np.where(letters == READ, answers, written)
        return Sample(x, self.label(x))

    def label(self, x: np.ndarray) -> np.ndarray:
        y = np.full(len(x), IGNORED)
        letters = x[::2]
        y[::2] = np.where(letters == READ, x[1::2][last_where(letters == WRITE)], IGNORED)
        return y

    def verify(self, tokens: np.ndarray) -> None:
        self.divide(tokens, 2)
        letters, bits = tokens[::2], tokens[1::2]
        self.allow(letters, WRITE, ZERO, "instructions (w, r, i)", 0, 2)
        self.allow(bits, ZERO, BLANK + 1, "bits (0, 1) and blanks", 1, 2)
        if letters[0] != WRITE:
            self.refuse(f"the first instruction must write (0), found {letters[0]}")
        blank = (bits == BLANK) & (letters != READ)
        if blank.any():
            self.refuse(f"a blank may stand only after a read, found one at {2 * int(blank.argmax()) + 1}")

    def tests(self) -> dict[str, Task]:
        """Return tests with few writes and reads, with many, and with 2 and 4 times the instructions."""
        sparse, dense = ({"ignore": ignore} for ignore in self.ignore_tests)
        return {**self.further({"sparse": sparse, "dense": dense}), **self.scaled("instructions", by=(2, 4))}

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent bit, and the last bit in the text, after any instruction."""
        last = self.rule(lambda x: gathered(x, last_where((x == ZERO) | (x == ONE))))
        return {**super().baselines(), "last-bit": last}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by instructions since the write, in octaves, and by disagreeing bits: 0, 1-3 or 4+.

        A disagreeing bit is an ignored bit since the write that differs from the written bit.
        """
        letters, bits = batch.x[:, ::2], batch.x[:, 1::2]
        last = np.maximum(last_where(letters == WRITE), 0)
        zeros, ones = (np.cumsum((letters == IGNORE) & (bits == bit), axis=1) for bit in (ZERO, ONE))
        one = np.take_along_axis(bits, last, axis=1) == ONE
        zeros, ones = (count - np.take_along_axis(count, last, axis=1) for count in (zeros, ones))
        other = np.where(one, zeros, ones)
        labels = np.where(other == 0, "0", np.where(other < 4, "1-3", "4+"))
        distance = octave(np.arange(letters.shape[1]) - last)
        return {"distance": np.repeat(distance, 2, axis=1), "disagreeing": np.repeat(labels, 2, axis=1)}

    def text(self, batch: Batch, index: int) -> str:
        """Return the instructions, such as ``w1 i0 r1``; with ``clean`` the answer follows each read after a colon."""
        instructions = zip(batch.x[index, ::2], batch.x[index, 1::2], batch.y[index, ::2], strict=True)
        words = ((SYMBOLS[a], f"_:{SYMBOLS[y]}" if bit == BLANK else SYMBOLS[bit]) for a, bit, y in instructions)
        return " ".join(letter + bit for letter, bit in words)
