"""Structure: dyck, stack and in-context-language follow brackets, stacks and unknown automata."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, Uniforms, UniformTask, earlier, gathered, last_where, padded_sample
from lrtasks.spec import IGNORED, Batch, Sample, Spec

# Hewitt et al.: batches of 10, Adam at 1e-2, one of their training sets (2 million tokens).
PAPER = {"close": "typed", "stay": 0.5}
PAPER |= budget(batch_size=10, lr=1e-2, steps=20_000, eval_every=1000, test_batches=200)
PAIRS = "()[]{}<>"
MAX_WHOLE = 2**16
MIN_SHARE = 0.05
"""Least share of the strings that must be no longer than they may be; the others are drawn again."""


@registry.register("dyck")
@dataclass(frozen=True)
class Dyck(TokenTask):
    """Say which kind of bracket closes next.

    A string of brackets of ``kinds`` kinds, never open deeper than ``depth``. At depth 0 the next bracket opens, at the
    greatest depth it closes; else it does as the bracket before did with probability ``stay``. The kind of an opening
    is uniform. The string is cut at ``length``, not ended. With K = ``kinds``: opening k is token k. With
    ``close="typed"`` closing k is token K + k, and the label stands at each token whose next token closes: its kind.
    With ``"generic"`` all closings are token K, and the label stands at the closing itself: the kind that it closes.

    With ``whole=(lo, hi)`` a string of at least lo tokens ends with probability 1/2 wherever no bracket is open; one of
    more than hi tokens is drawn again. Then come the token END, 2K, and padding, 2K + 1.

    Source: Hewitt et al., "RNNs can generate bounded hierarchical languages with optimal memory" (arXiv:2010.07515),
    sections 2 and 5, which has ``whole``, ``typed`` and ``stay=0.5``.

    >>> Dyck(kinds=2, close="generic").answer([0, 1, 2, 0, 2, 2]).tolist()
    [-100, -100, 1, -100, 0, 0]
    >>> task = Dyck(kinds=2)
    >>> task.answer([0, 1, 3, 0, 2, 2]).tolist()
    [-100, 1, -100, 0, 0, -100]
    """

    group: ClassVar[str] = "structure"
    presets: ClassVar[Presets] = {
        "small": {"kinds": 8, "depth": 8, "length": 128, "stay": 0.7, "close": "generic"},
        "paper": {"kinds": 8, "depth": 5, "whole": (2, 180), **PAPER},
        "paper-3": {"kinds": 8, "depth": 3, "whole": (2, 84), **PAPER},
    }

    kinds: int = parameter(8, "kinds of brackets K", at_least=1, at_most=2**19)
    depth: int = parameter(8, "most brackets that are open at once", at_least=1, at_most=4096)
    length: int = parameter(128, "tokens; not used with whole", at_least=2, at_most=MAX_LENGTH)
    stay: float = parameter(0.5, "probability to open or close as the step before", at_least=0, at_most=1)
    close: Literal["typed", "generic"] = parameter("typed", "a closing token for each kind, or one for all")
    whole: tuple[int, int] | None = parameter(
        None, "least and greatest number of tokens of strings that end with no bracket open; none: cut at length"
    )

    def check(self) -> None:
        if self.whole is None:
            return
        least, most = self.span("whole")
        if least < 2 or most > MAX_WHOLE or least == most == least // 2 * 2 + 1:
            self.refuse(f"whole must hold an even number in 2..{MAX_WHOLE}, found {list(self.whole)}")
        share = _share_within(self.whole, self.depth, self.stay)
        if share < MIN_SHARE:
            self.refuse(
                f"at depth {self.depth} and stay {self.stay} too few strings have {least} to {most} tokens:"
                f" {share:.1%} of those of at least {least}, {MIN_SHARE:.0%} are needed"
            )

    @property
    def _end(self) -> int:
        """The token END; padding is the next one."""
        return 2 * self.kinds

    @property
    def input(self) -> Spec:
        return Spec("token", self.length if self.whole is None else self.whole[1] + 1, self._end + 2)

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, self.kinds)

    def sample(self, rng: np.random.Generator) -> Sample:
        opens = self._opens(rng)
        length = len(opens)
        x, closed = self._typed(opens, rng.integers(self.kinds, size=length).tolist())
        y = self._labels(closed)
        if self.whole is None:
            return Sample(x, y)
        return padded_sample(np.append(x, self._end), y, self.input.length, self._end + 1)

    def _opens(self, rng: np.random.Generator) -> list[bool]:
        """Whether each bracket opens."""
        least, count = (math.inf, self.length) if self.whole is None else (self.whole[0], self.whole[1] + 1)
        while True:
            opens: list[bool] = []
            depth, opening = 0, True
            for chance in rng.random(count).tolist():
                if depth == 0 and chance < 0.5 and len(opens) >= least:
                    return opens
                opening = depth == 0 or (depth < self.depth and opening == (chance < self.stay))
                depth += 1 if opening else -1
                opens.append(opening)
            if self.whole is None:
                return opens

    def _typed(self, opens: list[bool], kinds: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of brackets, and the kind that each closes (or IGNORED)."""
        tokens, closed, stack = [], [], []
        for opening, kind in zip(opens, kinds, strict=True):
            if opening:
                stack.append(kind)
                tokens.append(kind)
                closed.append(IGNORED)
            else:
                kind = stack.pop()
                tokens.append(self.kinds + (kind if self.close == "typed" else 0))
                closed.append(kind)
        return np.array(tokens), np.array(closed)

    def _labels(self, closed: np.ndarray) -> np.ndarray:
        """Labels from the kind that each token closes: at the closing, or one token before if closings tell it."""
        return closed if self.close == "generic" else np.append(closed[1:], IGNORED)

    def label(self, x: np.ndarray) -> np.ndarray:
        """Labels of a string of brackets, which END (2K) and padding (2K + 1) may follow; refuses other strings."""
        count = int((x < self._end).argmin()) if (x >= self._end).any() else len(x)
        if (x[count:] < self._end).any():
            self.refuse(f"no bracket may follow END or padding, found {x[count]} at position {count}")
        closed, stack = np.full(len(x), IGNORED), []
        for place, token in enumerate(x[:count].tolist()):
            if token < self.kinds:
                stack.append(token)
                if len(stack) > self.depth:
                    self.refuse(f"more than {self.depth} brackets are open at position {place}")
                continue
            if self.close == "generic" and token != self.kinds:
                self.refuse(f"a closing is token {self.kinds}, found {token} at position {place}")
            if not stack:
                self.refuse(f"the bracket at position {place} closes nothing")
            closed[place] = stack.pop()
            if self.close == "typed" and token != self.kinds + closed[place]:
                self.refuse(
                    f"the bracket at position {place} must close kind {closed[place]}, found kind {token - self.kinds}"
                )
        return self._labels(closed)

    def tests(self) -> Mapping[str, Task]:
        """2, 4 and 8 times the length; of whole strings, those that are longer, up to twice."""
        if self.whole is None:
            return self.longer()
        most = self.whole[1]
        return {"2x": dataclasses.replace(self, whole=(most + 1, 2 * most))}

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent kind, and the kind of the opening that stands last in the text, closed or not."""

        def last_opening(x: np.ndarray) -> np.ndarray:
            return np.take_along_axis(x, np.maximum(last_where(x < self.kinds), 0), axis=1)

        return {**super().baselines(), "last-opening": self.rule(last_opening)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By distance from a closing back to its opening, in octaves, and by the number of brackets then open."""
        step = np.where(batch.x < self.kinds, 1, np.where(batch.x < self._end, -1, 0))
        after = np.cumsum(step, axis=1)
        open_at = np.where(step < 0, after + 1, after)  # how many are open while the bracket stands
        distance = np.zeros(batch.x.shape, dtype=np.int64)
        positions = np.arange(batch.x.shape[1])
        for depth in range(1, int(open_at.max()) + 1):
            closing = (step < 0) & (open_at == depth)
            opening = last_where((step > 0) & (open_at == depth))
            distance[closing] = (positions - opening)[closing]
        if self.close == "typed":
            distance, open_at = (np.pad(array[:, 1:], ((0, 0), (0, 1))) for array in (distance, open_at))
        return {"distance": octave(distance), "depth": open_at}

    def text(self, batch: Batch, index: int) -> str:
        """The brackets, of more than four kinds with numbers; generic closings as ``)``, then what they close."""
        x = batch.x[index]
        x = x[x < self._end]
        tokens = []
        for token in x.tolist():
            side, kind = divmod(token, self.kinds)
            if side and self.close == "generic":
                tokens.append(")")
            else:
                tokens.append(PAIRS[2 * kind + side] if self.kinds <= 4 else f"{kind})" if side else f"({kind}")
        y = batch.y[index]
        asked = f" | {' '.join(map(str, y[y >= 0]))}" if self.close == "generic" else ""
        return " ".join(tokens) + asked


@functools.lru_cache(maxsize=64)
def _share_within(lengths: tuple[int, int], most: int, stay: float) -> float:
    """Share of the strings that end at no fewer tokens than the first length that end at no more than the second."""
    least, greatest = lengths
    opened, closed = np.zeros((2, most + 1))  # probability of each depth, by what the last bracket did
    opened[1] = 1.0
    ended = 0.0
    for length in range(2, greatest + 1):
        up = opened * stay + closed * (1 - stay)
        up[0], up[most] = closed[0], 0.0
        down = opened + closed - up
        opened, closed = np.append(0.0, up[:-1]), np.append(down[1:], 0.0)
        if length >= least:
            closed[0] /= 2
            ended += float(closed[0])
    return ended


@registry.register("stack")
@dataclass(frozen=True)
class Stack(TokenTask):
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

    group: ClassVar[str] = "structure"
    grows: ClassVar[tuple[str, ...]] = ("operations",)
    presets: ClassVar[Presets] = {
        "small": {"stacks": 4, "values": 16, "operations": 42, "stay": 0.8, "feed": "blank"},
        # Kimi Linear: 1,024 tokens, at most 20,000 steps.
        "paper": budget(steps=20_000, batch_size=64, lr=1e-3, eval_every=1000),
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

    def verify(self, tokens: np.ndarray) -> None:
        self.divide(tokens, 3)
        actions, stacks, values = tokens.reshape(-1, 3).T
        push = self.values + self.stacks
        self.allow(actions, push, push + 2, "actions (PUSH, POP)", 0, 3)
        self.allow(stacks, self.values, push, "stacks", 1, 3)
        blank = (actions == push + 1) & (values == push + 2)
        self.allow(np.where(blank, 0, values), 0, self.values, "values", 2, 3)

    def label(self, x: np.ndarray) -> np.ndarray:
        """As the base class says; what stands after a pop changes no label."""
        y = np.full(len(x), IGNORED)
        for pop, push, _ in self._taken(x):
            y[3 * pop + 1] = x[3 * push + 2]
        return y

    def _taken(self, x: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """Numbers of each pop, of the push whose value it takes, and of the last push on its stack."""
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

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent value, the value pushed last, and the value pushed last on this stack, taken or not."""
        rules = {"last-push": self.rule(self._last_push), "last-push-of-stack": self.rule(self._last_push_of_stack)}
        return {**super().baselines(), **rules}

    def _last_push(self, x: np.ndarray) -> np.ndarray:
        last = last_where(x[:, ::3] == self.values + self.stacks)
        return np.repeat(np.take_along_axis(x[:, 2::3], last, axis=1), 3, axis=1)

    def _last_push_of_stack(self, x: np.ndarray) -> np.ndarray:
        prediction = np.zeros_like(x)
        for row, tokens in zip(prediction, x, strict=True):
            for pop, _, last in self._taken(tokens):
                row[3 * pop + 1] = tokens[3 * last + 2]
        return prediction

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Whether the item is not the one pushed last on its stack (buried: 1), and operations since its push."""
        buried, distance = np.zeros((2, *batch.y.shape), dtype=np.int64)
        for row, tokens in enumerate(batch.x):
            for pop, push, last in self._taken(tokens):
                buried[row, 3 * pop + 1], distance[row, 3 * pop + 1] = push != last, pop - push
        return {"buried": buried, "distance": octave(distance)}

    def text(self, batch: Batch, index: int) -> str:
        """The operations: ``+A3`` pushes 3 on stack A, ``-A:3`` takes 3 from it; stacks beyond Z as numbers."""
        words = []
        for (action, stack, value), (_, taken, _) in zip(
            batch.x[index].reshape(-1, 3).tolist(), batch.y[index].reshape(-1, 3).tolist(), strict=True
        ):
            name = chr(ord("A") + stack - self.values) if self.stacks <= 26 else f"s{stack - self.values}:"
            words.append(f"+{name}{value}" if action == self.values + self.stacks else f"-{name}:{taken}")
        return " ".join(words)


class Automata(NamedTuple):
    """One automaton for each sample: ``ways`` is their number out of each state, ``(batch, states)``; symbol and next
    state of each way, ``(batch, states, most ways)``."""

    ways: np.ndarray
    symbol: np.ndarray
    to: np.ndarray


@registry.register("in-context-language")
@dataclass(frozen=True)
class InContextLanguage(UniformTask):
    """Read strings of a random automaton; where the text so far determines a legal next symbol, give it.

    Tokens: A = ``symbols`` symbols from 0, END = A after every string, PAD = A + 1 after the last one; classes: symbols
    and END.

    Law of a sample. An automaton of n states, n uniform over ``states``: one edge from each state to the next of a
    cycle through all of them, under a uniform symbol; then n (E - 1) times, E = ``edges``, an edge s -a-> t with s, a
    and t uniform, which is taken if s has fewer than E edges, none under a, and t is not entered under a yet. So a
    symbol never leads from one state to two, nor from two states to one: the automaton is reversible. State 0 is the
    start; one other state, uniform, may also end the string. A string is a walk from the start that takes each way out
    of a state with equal probability, until it ends. The text is a number of strings uniform over ``strings``, cut at
    ``length``.

    Labels. The known automaton after x[0..t] is the smallest reversible one that reads x[0..t]: start with one state
    per beginning of a string; all strings start in one state and all that ended did so in one; while one state has two
    edges under one symbol, join their ends, and while two edges under one symbol enter one state, join their origins.
    Every join is certain, so every known edge is one of the hidden automaton. y[t] is the symbol of the only known edge
    of the state after x[0..t]; positions with no known edge or several have no label. The text may go on otherwise; the
    label is the one symbol that is legal for certain.

    Source: after RegBench of Akyürek et al., "In-Context Language Learning: Architectures and Algorithms"
    (arXiv:2401.12973), section 3, which scores the share of predictions that are legal; law and labels are ours.
    Inference: Angluin, "Inference of Reversible Languages", Journal of the ACM 29 (1982), section 4.

    >>> task = InContextLanguage(symbols=3, strings=(1, 4))
    >>> a, b, c, END = 0, 1, 2, 3
    >>> task.answer([a, c, END, b, c, END, b]).tolist()
    [-100, -100, 0, -100, -100, -100, 2]
    """

    group: ClassVar[str] = "structure"
    presets: ClassVar[Presets] = {
        "small": {"length": 128, "strings": (10, 20), "states": (4, 8), "symbols": 3, "edges": 2},
        "small-hard": {"length": 256, "strings": (10, 20), "states": (6, 12), "symbols": 3, "edges": 2},
        # the paper's sizes: 10 to 20 strings, 4 to 12 states, alphabets of up to 18 symbols, up to 4 edges
        "paper": {"length": 512, "strings": (10, 20), "states": (4, 12), "symbols": 18, "edges": 4},
    }

    length: int = parameter(256, "sequence length, at which the text is cut", at_least=2, at_most=MAX_LENGTH)
    strings: tuple[int, int] = parameter((10, 20), "least and greatest number of strings", at_least=1)
    states: tuple[int, int] = parameter((4, 12), "least and greatest number of states", at_least=2, at_most=64)
    symbols: int = parameter(3, "number of symbols A", at_least=1, at_most=1024)
    edges: int = parameter(2, "most edges of a state E, without the end", at_least=1, at_most=64)

    def check(self) -> None:
        self.span("strings")
        self.span("states")
        if self.edges > self.symbols:
            self.refuse(
                f"edges of a state have different symbols: at most symbols ({self.symbols}), found {self.edges}"
            )

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self.symbols + 2)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length, self.symbols + 1)

    @property
    def draws(self) -> int:
        most = self.states[1]
        return 3 + most + 3 * most * (self.edges - 1) + self.length

    def made(self, u: Uniforms) -> Batch:
        low, high = self.strings
        strings = low + u.whole(high - low + 1, 1)
        automata = self.automata(u)
        # states and ways of all samples are numbered through, so that a step is two lookups
        most, first = automata.symbol.shape[2], automata.ways.shape[1] * np.arange(len(u))
        ways, symbol = automata.ways.ravel(), automata.symbol.ravel()
        to = (first[:, None, None] + automata.to).ravel()
        text, state = np.empty((self.length, len(u)), dtype=np.int64), first
        for at, step in enumerate(u.take(self.length).T):
            way = most * state + (step * ways[state]).astype(np.int64)
            text[at], state = symbol[way], to[way]
        text = np.ascontiguousarray(text.T)
        ended = text == self.symbols
        x = np.where(np.cumsum(ended, axis=1) - ended < strings, text, self.symbols + 1)
        return Batch(x, self.label_all(x), x <= self.symbols)

    def automata(self, u: Uniforms) -> Automata:
        """The automata that uniform numbers make, one for each sample; END leads to state 0."""
        low, high = self.states
        rows, states = np.arange(len(u)), np.arange(high)
        n = low + u.whole(high - low + 1, 1)
        final = 1 + u.whole(n - 1, 1)[:, 0]
        symbol = np.zeros((len(u), high, self.edges + 1), dtype=np.int64)
        to, ways = np.zeros_like(symbol), np.where(states < n, 1, 0)
        symbol[..., 0], to[..., 0] = u.whole(self.symbols, high), (states + 1) % n
        left = np.zeros((len(u), high, self.symbols), dtype=bool)
        entered = np.zeros_like(left)
        row, state = np.nonzero(ways)
        left[row, state, symbol[row, state, 0]] = entered[row, to[row, state, 0], symbol[row, state, 0]] = True
        tries = high * (self.edges - 1)
        origins, symbols, ends = u.whole(n, tries), u.whole(self.symbols, tries), u.whole(n, tries)
        for number, (one, by, two) in enumerate(zip(origins.T, symbols.T, ends.T, strict=True)):
            free = ~left[rows, one, by] & ~entered[rows, two, by] & (ways[rows, one] < self.edges)
            (row,) = np.nonzero(free & (number < n[:, 0] * (self.edges - 1)))
            one, by, two = one[row], by[row], two[row]
            way = ways[row, one]
            symbol[row, one, way], to[row, one, way] = by, two
            left[row, one, by] = entered[row, two, by] = True
            ways[row, one] += 1
        symbol[rows, final, ways[rows, final]] = self.symbols
        to[rows, final, ways[rows, final]] = 0
        ways[rows, final] += 1
        return Automata(ways, symbol, to)

    def _known(self, tokens: list[int]) -> list[int]:
        """The label at each of ``tokens``, which hold no padding."""
        end = self.symbols
        after: list[dict[int, int]] = [{}]  # edges out of and into each state by symbol; state 0 is the start
        before: list[dict[int, int]] = [{}]
        same = [0]  # the state that each was joined to; itself at first
        labels = []
        state = 0
        for symbol in tokens:
            edges = after[state]
            to = edges.get(symbol, -1)
            if to >= 0:
                while same[to] != to:
                    to = same[to]
            elif symbol != end:
                to = len(same)
                after.append({})
                before.append({symbol: state})
                same.append(to)
                edges[symbol] = to
            else:
                to = 0
                if end in before[0]:  # all strings end in one state
                    _join([(before[0][end], state)], after, before, same)
                else:
                    edges[end], before[0][end] = 0, state
            state = to
            edges = after[state]
            labels.append(next(iter(edges)) if len(edges) == 1 else IGNORED)
        return labels

    def label(self, x: np.ndarray) -> np.ndarray:
        y, size = np.full(len(x), IGNORED), int((x <= self.symbols).sum())
        y[:size] = self._known(x[:size].tolist())
        return y

    def verify(self, tokens: np.ndarray) -> None:
        """Any text; what the automaton cannot be is not checked."""
        there = tokens <= self.symbols
        if (there[1:] & ~there[:-1]).any():
            at = 1 + int((there[1:] & ~there[:-1]).argmax())
            self.refuse(f"only padding ({self.symbols + 1}) may follow padding, found {tokens[at]} at position {at}")

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent symbol; what followed the last one, two or three tokens when they last stood together
        (of fewer if they did not); what followed when a string last began as this one."""
        return {
            **super().baselines(),
            "bigram": self.rule(lambda x: self._followed(x, 1)),
            "trigram": self.rule(lambda x: self._followed(x, 2)),
            "4-gram": self.rule(lambda x: self._followed(x, 3)),
            "same-beginning": self.rule(self._same_beginning),
        }

    def _followed(self, x: np.ndarray, context: int) -> np.ndarray:
        """What followed the last ``context`` tokens when they last stood together, or fewer of them."""
        following = np.concatenate([x[:, 1:], np.full((len(x), 1), -1)], axis=1)
        guess = np.full(x.shape, -1)
        key = np.zeros_like(x)
        for size in range(context):
            key[:, size:] = key[:, size:] * self.input.width + x[:, : x.shape[1] - size] + 1
            last, _ = earlier(np.unique(key, return_inverse=True)[1].reshape(x.shape))
            known = gathered(following, last)
            guess = np.where(known >= 0, known, guess)
        return guess

    def _same_beginning(self, x: np.ndarray) -> np.ndarray:
        """What followed when an earlier string began like the present one up to here, -1 where none did."""
        guess = np.full(x.shape, -1)
        for row, tokens in zip(guess, x.tolist(), strict=True):
            tree: dict[tuple[int, int], int] = {}
            last: dict[int, int] = {}
            node = 0
            for at, token in enumerate(tokens):
                last[node] = token
                node = 0 if token == self.symbols else tree.setdefault((node, token), len(tree) + 1)
                row[at] = last.get(node, -1)
        return guess

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By number of strings before, in octaves, and by whether a string before began alike (1) or not (0)."""
        ended = np.cumsum(batch.x == self.symbols, axis=1)
        return {"strings": octave(ended), "seen": (self._same_beginning(batch.x) >= 0).astype(np.int64)}

    def tests(self) -> Mapping[str, Task]:
        """Twice and four times the strings, with as much more room."""
        return self.scaled("length", "strings", by=(2, 4))

    def text(self, batch: Batch, index: int) -> str:
        """The strings in letters, ``|`` after each; what is asked in brackets behind the token."""
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        names = [*(chr(ord("a") + n) if n < 26 else f"#{n}" for n in range(self.symbols)), "|"]
        shown = (
            names[token] + (f"({names[label]})" if label >= 0 else "")
            for token, label in zip(x, y, strict=True)
            if token <= self.symbols
        )
        return " ".join(shown)


def _join(
    pairs: list[tuple[int, int]], after: list[dict[int, int]], before: list[dict[int, int]], same: list[int]
) -> None:
    """Join the states of each of ``pairs``, and whatever must be one state then; the lower number stays."""
    while pairs:
        one, two = pairs.pop()
        while same[one] != one:
            one = same[one]
        while same[two] != two:
            two = same[two]
        if one == two:
            continue
        if one > two:
            one, two = two, one
        same[two] = one
        for edges in (after, before):
            mine = edges[one]
            for symbol, other in edges[two].items():
                known = mine.setdefault(symbol, other)
                if known != other:
                    pairs.append((known, other))
