from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import Uniforms, UniformTask, earlier, gathered, letter
from lrtasks.spec import IGNORED, Batch, Spec


@registry.register("in-context-language")
@dataclass(frozen=True)
class InContextLanguage(UniformTask):
    """Read strings of a random automaton; give the next symbol wherever only one symbol is known to be legal.

    Tokens: A = ``symbols`` symbols from 0, END = A after every string, PAD = A + 1 after the last string. Classes: the
    symbols and END.

    Distribution. An automaton has n states, n uniform over ``states``. A cycle through all states gives each state
    one edge to the next state, under a uniform symbol. Then n (E - 1) more edges s -a-> t are tried, with E = ``edges``
    and uniform s, a and t. An edge is added if s has fewer than E edges and none under a, and no edge under a enters t.
    So a symbol never leads from one state to two states, nor from two states to one: the automaton is reversible. State
    0 is the start. In one other state, uniform, a string may also end. A string is a walk from the start that takes
    each way out of a state with equal probability, until it ends. The text is a number of strings, uniform over
    ``strings``, cut at ``length``.

    Labels. The known automaton after x[0..t] is the smallest reversible automaton that reads x[0..t]. Its construction
    begins with one state for each prefix of a string. All strings share the start state, and all states in which a
    string ended are joined. While one state has two edges under one symbol, the states they lead to are joined. While
    two edges under one symbol enter one state, the states they come from are joined. Every join is certain, so every
    known edge is an edge of the hidden automaton. A known ending counts as an edge under END. y[t] is the symbol of
    the only known edge out of the state after x[0..t]; positions with no known edge or with several have no label. The
    text may continue with another symbol; the label is the one symbol that is legal for certain.

    Source: after RegBench of Akyürek et al., "In-Context Language Learning: Architectures and Algorithms"
    (arXiv:2401.12973), section 3. RegBench scores the share of legal predictions. Distribution and labels are ours.
    Inference: Angluin, "Inference of Reversible Languages", Journal of the ACM 29 (1982), section 4.

    >>> task = InContextLanguage(symbols=3, strings=(1, 4))
    >>> a, b, c, END = 0, 1, 2, 3
    >>> task.answer([a, c, END, b, c, END, b]).tolist()
    [-100, -100, 0, -100, -100, -100, 2]
    """

    group: ClassVar[str] = "structure"
    presets: ClassVar[Presets] = {
        # a Transformer of four layers can solve this; no run has solved small-hard
        "small": {"length": 64, "states": (2, 2), **budget(batch_size=64, steps=6000, schedule="linear")},
        "small-hard": {"length": 128, "states": (4, 8)},
        # the paper's sizes: 10 to 20 strings, 4 to 12 states, alphabets of up to 18 symbols, up to 4 edges
        "paper": {"length": 512, "strings": (10, 20), "states": (4, 12), "symbols": 18, "edges": 4},
    }

    length: int = parameter(256, "sequence length; longer texts are cut", at_least=2, at_most=MAX_LENGTH)
    strings: tuple[int, int] = parameter((10, 20), "minimum and maximum number of strings", at_least=1, at_most=2**53)
    states: tuple[int, int] = parameter((4, 12), "minimum and maximum number of states", at_least=2, at_most=64)
    symbols: int = parameter(3, "number of symbols A", at_least=1, at_most=1024)
    edges: int = parameter(
        2, "maximum number of edges E per state; the end of a string does not count", at_least=1, at_most=64
    )

    def check(self) -> None:
        self.span("strings")
        self.span("states")
        if self.edges > self.symbols:
            self.refuse(f"edges must be at most symbols ({self.symbols}), found {self.edges}")

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self.symbols + 2)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length, self.symbols + 1)

    @property
    def pad(self) -> int:
        return self.symbols + 1

    def made(self, u: Uniforms) -> Batch:
        low, high = self.strings
        strings = low + u.whole(high - low + 1, 1)
        ways, symbol, to = self.automata(u)
        # states and ways are numbered over all samples together, so that a step is two lookups
        most, first = symbol.shape[2], ways.shape[1] * np.arange(len(u))
        ways, symbol, to = ways.ravel(), symbol.ravel(), (first[:, None, None] + to).ravel()
        text, state = np.empty((self.length, len(u)), dtype=np.int64), first
        for at, step in enumerate(u.take(self.length).T):
            way = most * state + (step * ways[state]).astype(np.int64)
            text[at], state = symbol[way], to[way]
        text = np.ascontiguousarray(text.T)
        ended = text == self.symbols
        x = np.where(np.cumsum(ended, axis=1) - ended < strings, text, self.pad)
        return Batch(x, self.label_all(x), x <= self.symbols)

    def automata(self, u: Uniforms) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Make one automaton for each sample from uniform numbers.

        Returns:
            The number of ways out of each state, ``(batch, states)``: edges, and END, which leads to state 0. Symbol
            and next state of each way, ``(batch, states, most ways)``.
        """
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
        return ways, symbol, to

    def _known(self, tokens: list[int]) -> list[int]:
        """Return the label at each of ``tokens``, which hold no padding."""
        end = self.symbols
        after: list[dict[int, int]] = [{}]  # edges out of and into each state by symbol; state 0 is the start
        before: list[dict[int, int]] = [{}]
        same = [0]  # for each state, the state that it was joined to, at first itself
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
        """Check only the padding, not whether an automaton can produce the text."""
        there = tokens <= self.symbols
        if (there[1:] & ~there[:-1]).any():
            at = 1 + int((there[1:] & ~there[:-1]).argmax())
            self.refuse(f"only padding ({self.pad}) may follow padding, found {tokens[at]} at position {at}")

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent symbol; what followed the last 1, 2 or 3 tokens at their previous occurrence (or
        fewer tokens if these are new); what followed the same prefix in the latest earlier string that has it."""
        grams = {"bigram": 1, "trigram": 2, "4-gram": 3}
        rules = {name: self.rule(self._followed, context=n) for name, n in grams.items()}
        return {**super().baselines(), **rules, "same-beginning": self.rule(self._same_beginning)}

    def _followed(self, x: np.ndarray, context: int) -> np.ndarray:
        """Return what followed the last ``context`` tokens, or fewer of them, at their previous occurrence."""
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
        """Return the symbol that followed the same beginning in the latest earlier string that has it; else -1."""
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
        """Break scores down by earlier strings, in octaves, and by whether one of them began alike (1) or not (0)."""
        ended = np.cumsum(batch.x == self.symbols, axis=1)
        return {"strings": octave(ended), "seen": (self._same_beginning(batch.x) >= 0).astype(np.int64)}

    def tests(self) -> dict[str, Task]:
        """Return tests with 2 and 4 times the strings and the length."""
        return self.scaled("length", "strings", by=(2, 4))

    def text(self, batch: Batch, index: int) -> str:
        """Return the strings in letters, ``|`` after each; a label is in brackets after its token."""
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        names = [*map(letter, range(self.symbols)), "|"]
        labels = [f"({names[label]})" if label >= 0 else "" for label in y]
        shown = (names[token] + label for token, label in zip(x, labels, strict=True) if token <= self.symbols)
        return " ".join(shown)


def _join(
    pairs: list[tuple[int, int]], after: list[dict[int, int]], before: list[dict[int, int]], same: list[int]
) -> None:
    """Join the states of each of ``pairs``, and all states that must then be one; the lower number stays."""
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
