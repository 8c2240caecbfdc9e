"""Hops: k-hop, depo and variable-tracking follow a chain of references."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, Uniforms, UniformTask, earlier, spread
from lrtasks.spec import IGNORED, Batch, Sample, Spec

TESTED_HOPS = 8


@registry.register("k-hop")
@dataclass(frozen=True)
class KHop(UniformTask):
    """From the letter at each position, go k times to the letter that followed its last earlier occurrence.

    The first token is the hop count: token h stands for k = ``hops[0]`` + h. The rest are letters, A = ``letters`` of
    them, numbered from the token after the last hop count; each is uniform among those that differ from the one
    before. With s the letters, hop(i) = j + 1 where j is the greatest index below i with s[j] = s[i]; the answer at i
    is s[hop^k(i)]. k is uniform over ``hops``, or over ``asked``.

    ``law="sanford"``: classes 0..A-1 are the letters, A is "none" (a hop that does not exist) and A + 1 is "blank" (the
    label of the first token). ``law="clean"``: those positions have no label; of the published labels 26 % are one of
    the two. Source: Sanford et al., "Transformers, parallel computation, and logarithmic depth" (arXiv:2402.09268),
    section 4, code chsanford/hop-induction-heads.

    >>> task = KHop(length=7, letters=3, hops=(1, 2), law="clean")
    >>> a, b, c = 2, 3, 4
    >>> [task.answer([hop, a, b, a, c, b, a]).tolist()[3:] for hop in (0, 1)]
    [[1, -100, 0, 2], [-100, -100, 1, -100]]
    """

    group: ClassVar[str] = "hops"
    presets: ClassVar[Presets] = {
        "small": {"law": "clean", "length": 64, "letters": 8, "hops": (1, 2)}
        | budget(batch_size=64, lr=3e-3, steps=1500),
        "small-hard": {"law": "clean", "length": 128, "letters": 8, "hops": (1, 4), **budget(batch_size=32)},
        "paper": {"length": 99, "letters": 4, "hops": (0, 16)}
        | budget(steps=100_000, batch_size=32, lr=1e-4, eval_every=5_000),
    }

    length: int = parameter(99, "sequence length, hop count included", at_least=2, at_most=MAX_LENGTH)
    letters: int = parameter(4, "number of letters A", at_least=2, at_most=2**16)
    hops: tuple[int, int] = parameter((0, 16), "least and greatest hop count", at_least=0, at_most=1024)
    law: Literal["sanford", "clean"] = parameter("sanford", "whether missing hops and the first token have labels")
    asked: tuple[int, int] | None = parameter(None, "hop counts that are drawn; none: all of hops", at_least=0)

    def check(self) -> None:
        self.span("hops")
        low, high = self.span("asked" if self.asked else "hops")
        if low < self.hops[0] or high > self.hops[1]:
            self.refuse(f"asked must lie in hops {list(self.hops)}, found [{low}, {high}]")

    @property
    def _first_letter(self) -> int:
        return self.hops[1] - self.hops[0] + 1

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self._first_letter + self.letters)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length, self.letters + (2 if self.law == "sanford" else 0))

    @property
    def draws(self) -> int:
        return self.length

    def made(self, u: Uniforms) -> Batch:
        low, high = self.asked or self.hops
        hop = low - self.hops[0] + u.whole(high - low + 1, 1)
        first, step = u.whole(self.letters, 1), 1 + u.whole(self.letters - 1, self.length - 2)
        letters = np.cumsum(np.concatenate([first, step], axis=1), axis=1) % self.letters
        x = np.concatenate([hop, self._first_letter + letters], axis=1)
        return Batch(x, self.label_all(x))

    def _ends(self, x: np.ndarray) -> np.ndarray:
        """For each letter, the index hop^k(i) among the letters, or -1 if a hop does not exist."""
        last, _ = earlier(x[:, 1:])
        hop = np.where(last >= 0, last + 1, -1)
        k = self.hops[0] + x[:, :1]
        end = np.broadcast_to(np.arange(hop.shape[1]), hop.shape)
        for done in range(int(k.max())):
            further = np.where(end >= 0, np.take_along_axis(hop, np.maximum(end, 0), axis=1), -1)
            end = np.where(done < k, further, end)
        return end

    def label_all(self, x: np.ndarray) -> np.ndarray:
        end = self._ends(x)
        missing, blank = (self.letters, self.letters + 1) if self.law == "sanford" else (IGNORED, IGNORED)
        letters = np.take_along_axis(x[:, 1:], np.maximum(end, 0), axis=1) - self._first_letter
        y = np.full(x.shape, blank)
        y[:, 1:] = np.where(end >= 0, letters, missing)
        return y

    def verify(self, tokens: np.ndarray) -> None:
        if len(tokens) < 2:
            self.refuse(f"an input is a hop count and at least one letter, found {len(tokens)} token")
        self.allow(tokens[:1], 0, self._first_letter, "the first token is a hop count and")
        self.allow(tokens[1:], self._first_letter, self.input.width, "letters", 1)

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent class; the letter itself; another letter; and the best of these for each hop count."""
        return {
            **super().baselines(),
            "own-letter": self.rule(lambda x: self._offset(x, 0)),
            "not-own": self.rule(lambda x: self._offset(x, 1)),
            "by-hops": _ByHops(self),
        }

    def _offset(self, x: np.ndarray, offset: int | np.ndarray) -> np.ndarray:
        """The letter at each position, moved on by ``offset`` in the alphabet."""
        moved: np.ndarray = (np.maximum(x - self._first_letter, 0) + offset) % self.letters
        return moved

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By hop count, and by distance back to the letter that answers, in octaves."""
        end = self._ends(batch.x)
        distance = np.zeros(batch.y.shape, dtype=np.int64)
        distance[:, 1:] = octave(np.where(end >= 0, np.arange(end.shape[1]) - end, 0))
        return {"hops": self.hops[0] + batch.x[:, :1], "distance": distance}

    def tests(self) -> Mapping[str, Task]:
        """2 and 4 times the length; each hop count up to 8 alone."""
        counts = range(self.hops[0], min(self.hops[1], TESTED_HOPS) + 1)
        return {**self.scaled("length", by=(2, 4)), **self.further({f"hops-{k}": {"asked": (k, k)} for k in counts})}

    def text(self, batch: Batch, index: int) -> str:
        """The hop count, then each letter with its answer below it in a second row."""
        x, y = batch.x[index], batch.y[index]
        names = [*(_letter(number) for number in range(self.letters)), "~", "_"]
        asked = " ".join(_letter(token - self._first_letter) for token in x[1:].tolist())
        return f"k={self.hops[0] + x[0]}: {asked} => " + " ".join("." if t < 0 else names[t] for t in y[1:].tolist())


class _ByHops:
    """For each hop count the most frequent answer, as a distance in the alphabet from the letter itself or a class."""

    def __init__(self, task: KHop) -> None:
        self._task = task

    def fit(self, batches: Iterable[Batch]) -> None:
        task = self._task
        counts = np.zeros((task.input.width - task.letters, task.target.width), dtype=np.int64)
        for batch in batches:
            hop = np.broadcast_to(batch.x[:, :1], batch.y.shape)[:, 1:]
            y, own = batch.y[:, 1:], task._offset(batch.x, 0)[:, 1:]
            answer = np.where(y < task.letters, (y - own) % task.letters, y)
            np.add.at(counts, (hop[y >= 0], answer[y >= 0]), 1)
        self._best = counts.argmax(axis=1)

    def predict(self, batch: Batch) -> np.ndarray:
        task = self._task
        best = self._best[batch.x[:, :1]]
        guess = np.where(best < task.letters, task._offset(batch.x, best), best)
        if task.law == "sanford":
            guess[:, 0] = task.letters + 1
        return guess


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else f"#{number}"


Word = tuple[int, ...]

PAD = 0


@registry.register("depo")
@dataclass(frozen=True)
class Depo(TokenTask):
    """A cycle of nodes is given as edges in random order: give the node that comes k steps after a node.

    With (V, a, b) = ``words``, N the greatest of ``nodes`` and K = ``hops``: a node's name is a word of a..b tokens,
    its size uniform, its tokens uniform over 1..V, V added to the last; all names of a sample differ. Tokens: 0 pads,
    1..2V words, 2V + k "k steps" for k = 1..K, then ANSWER and BEGIN. A sample is BEGIN; the edges v_i v_(i+1 mod n) in
    random order; then for min(n, ``queries``) distinct nodes "k steps", the node, ANSWER, and the node v_(i+k);
    padding on the right. Labels: the answer's first token at ANSWER, each further one at the token before it.

    ``law="published"``: in training n is drawn from ``nodes`` with weight 1/(n + √N) and k from 1..K uniformly; in
    validation and test n = N, and k is uniform over the powers of two up to K, and K (and 24 if K = 32). Source:
    Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers"
    (arXiv:2512.17351), task Depo; code facebookresearch/PhysicsLM4, which has errors and labels the token
    ANSWER too.
    ``law="clean"``: n and k are uniform everywhere. Its presets have words of one token, whose end is known.

    >>> task = Depo(nodes=3, hops=2, words=(3, 1, 1), law="clean")
    >>> a, b, c, two, ANSWER, BEGIN = 4, 5, 6, 8, 9, 10
    >>> task.answer([BEGIN, b, c, a, b, c, a, two, a, ANSWER, c]).tolist()[-3:]
    [-100, 6, -100]
    """

    group: ClassVar[str] = "hops"
    presets: ClassVar[Presets] = {
        "small": {"law": "clean", "nodes": 12, "hops": 2, "queries": 8, "words": (32, 1, 1)},
        "small-hard": {"law": "clean", "nodes": 24, "hops": 4, "queries": 10, "words": (64, 1, 1)},
        # Depo1 of the paper at its least N
        "paper": {"nodes": (3, 225), "hops": 8, "queries": 10, "words": (50, 1, 2)},
    }

    nodes: int | tuple[int, int] = parameter(
        (3, 75), "number of nodes n; two numbers: the least and the greatest", at_least=2, at_most=2**16
    )
    hops: int = parameter(8, "greatest number of steps K", at_least=1, at_most=1024)
    queries: int = parameter(10, "questions of a sample, at most one per node", at_least=1, at_most=2**16)
    words: tuple[int, int, int] = parameter(
        (50, 1, 2), "vocabulary of names V, least and most tokens of a name", at_least=1, at_most=2**20
    )
    law: Literal["published", "clean"] = parameter("published", "how numbers of nodes and of steps are drawn")

    def check(self) -> None:
        _, most = self.span("nodes")
        vocab, short, long = self.words
        if not short <= long <= 16:
            self.refuse(f"words must have a least and a most number of tokens, at most 16, found {list(self.words)}")
        names = sum(vocab**size for size in range(short, long + 1))
        if names < most:
            self.refuse(f"words {list(self.words)} give {names} names, too few for {most} nodes")

    @property
    def _hop(self) -> int:
        """The token "k steps" is this plus k."""
        return 2 * self.words[0]

    @property
    def _answer(self) -> int:
        return self._hop + self.hops + 1

    @property
    def _begin(self) -> int:
        return self._answer + 1

    @property
    def input(self) -> Spec:
        most, long = self.span("nodes")[1], self.words[2]
        return Spec("token", 1 + 2 * most * long + min(most, self.queries) * (2 + 2 * long), self._begin + 1)

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, self._hop + 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        n = self._count(rng)
        names = self._names(rng, n)
        x = [self._begin]
        for node in rng.permutation(n).tolist():
            x += names[node]
            x += names[(node + 1) % n]
        y = [IGNORED] * len(x)
        asked = rng.permutation(n)[: self.queries].tolist()
        for node, k in zip(asked, self._steps(rng, len(asked)), strict=True):
            answer = names[(node + k) % n]
            x += [self._hop + k, *names[node], self._answer, *answer]
            y += [IGNORED] * (1 + len(names[node])) + [*answer, IGNORED]
        padding = self.input.length - len(x)
        least, most = self.span("nodes")
        fixed = least == most and self.words[1] == self.words[2]
        mask = None if fixed else np.arange(self.input.length) < len(x)
        return Sample(np.array(x + [PAD] * padding), np.array(y + [IGNORED] * padding), mask)

    def _count(self, rng: np.random.Generator) -> int:
        least, most = self.span("nodes")
        if self.law == "clean":
            return int(rng.integers(least, most + 1))
        if self.testing or least == most:
            return most
        bounds = _cumulative(least, most)
        return least + int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))

    def _steps(self, rng: np.random.Generator, count: int) -> list[int]:
        if self.law == "clean" or not self.testing:
            steps: list[int] = rng.integers(1, self.hops + 1, count).tolist()
            return steps
        tested = sorted(
            {2**i for i in range(self.hops.bit_length())} | {self.hops} | ({24} if self.hops == 32 else set())
        )
        return [tested[i] for i in rng.integers(len(tested), size=count).tolist()]

    def _names(self, rng: np.random.Generator, n: int) -> list[Word]:
        """``n`` different words; one that comes again is drawn anew."""
        vocab, short, long = self.words
        if short == long == 1:
            return [(vocab + 1 + token,) for token in rng.permutation(vocab)[:n].tolist()]
        found: dict[Word, None] = {}
        while len(found) < n:
            sizes = rng.integers(short, long + 1, 2 * n).tolist()
            for size, tokens in zip(sizes, rng.integers(1, vocab + 1, (2 * n, long)).tolist(), strict=True):
                found[(*tokens[: size - 1], vocab + tokens[size - 1])] = None
                if len(found) == n:
                    break
        return list(found)

    def _words(self, tokens: list[int], at: int) -> Iterator[tuple[Word, int]]:
        """Words from position ``at`` on, each with the position after it; ends before a token that is in no word."""
        begin = at
        while at < len(tokens) and 0 < tokens[at] <= self._hop:
            at += 1
            if tokens[at - 1] > self.words[0]:
                yield tuple(tokens[begin:at]), at
                begin = at

    def _read(self, tokens: list[int]) -> tuple[dict[Word, Word], list[tuple[int, Word, int]]]:
        """Successors by node, and the questions: steps, node, position of ANSWER.

        Raises:
            UsageError: if the tokens are no input of the task.
        """
        if tokens[0] != self._begin:
            self.refuse(f"an input begins with BEGIN ({self._begin}), found {tokens[0]}")
        edges = list(self._words(tokens, 1))
        after: dict[Word, Word] = {}
        for (one, _), (two, _) in zip(edges[::2], edges[1::2], strict=False):
            if after.setdefault(one, two) != two:
                self.refuse(f"node {list(one)} has two successors, {list(after[one])} and {list(two)}")
        at = edges[-1][1] if edges else 1
        if len(edges) % 2 or not edges or set(after) != set(after.values()):
            self.refuse("the words before the first question must be edges that form cycles, two words each")
        questions = []
        while at < len(tokens) and tokens[at] != PAD:
            steps = tokens[at] - self._hop
            word = next(self._words(tokens, at + 1), None)
            if not 1 <= steps <= self.hops or word is None or word[1] == len(tokens) or tokens[word[1]] != self._answer:
                self.refuse(
                    f"a question is a number of steps, a word, ANSWER and a word; found another at position {at}"
                )
            if word[0] not in after:
                self.refuse(f"the question at position {at} asks for {list(word[0])}, which no edge has")
            questions.append((steps, *word))
            answer = next(self._words(tokens, word[1] + 1), None)
            at = answer[1] if answer else len(tokens)
        if any(tokens[at:]):
            self.refuse(f"only padding (0) may follow padding, found another token after position {at}")
        return after, questions

    def _answers(self, tokens: list[int], steps: int | None = None) -> Iterator[tuple[int, Word, int]]:
        """For each question the position of ANSWER, the answer, and the steps; those asked for, or ``steps``."""
        after, questions = self._read(tokens)
        for asked, node, at in questions:
            for _ in range(asked if steps is None else steps):
                node = after[node]
            yield at, node, asked

    def label_all(self, x: np.ndarray) -> np.ndarray:
        """As the base class says; refuses inputs that are none. The last answer may be cut."""
        return self._filled(x, lambda tokens: ((at, node) for at, node, _ in self._answers(tokens)), IGNORED)

    def _filled(
        self, x: np.ndarray, words: Callable[[list[int]], Iterable[tuple[int, Sequence[int]]]], fill: int = 0
    ) -> np.ndarray:
        """An array like ``x`` that holds, for the tokens of each row, ``words`` at their positions."""
        y = np.full(x.shape, fill)
        for row, tokens in zip(y, x.tolist(), strict=True):
            for at, word in words(tokens):
                row[at : at + len(word)] = word[: len(row) - at]
        return y

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent token; one node of the sample (that of its first edge); the next node, whatever k."""

        def first(tokens: list[int]) -> Iterator[tuple[int, Word]]:
            word = next(self._words(tokens, 1))[0]
            return ((at, word) for at, _, _ in self._answers(tokens))

        def next_one(tokens: list[int]) -> Iterator[tuple[int, Word]]:
            return ((at, node) for at, node, _ in self._answers(tokens, steps=1))

        return {
            **super().baselines(),
            "one-node": self.rule(lambda x: self._filled(x, first)),
            "one-step": self.rule(lambda x: self._filled(x, next_one)),
        }

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By the number of steps k."""

        def steps(tokens: list[int]) -> Iterator[tuple[int, list[int]]]:
            return ((at, [asked] * len(node)) for at, node, asked in self._answers(tokens))

        return {"steps": self._filled(batch.x, steps)}

    def tests(self) -> Mapping[str, Task]:
        """Twice and four times the nodes, as far as there are names."""
        least, most = self.span("nodes")
        more = {n: n * most if isinstance(self.nodes, int) else (least, n * most) for n in (2, 4)}
        return self.further({f"{n}x": {"nodes": nodes} for n, nodes in more.items()})

    def text(self, batch: Batch, index: int) -> str:
        """Edges as ``3>7``, then the questions as ``3+2=5``; the tokens of a name are joined by dots."""
        tokens = batch.x[index].tolist()
        _, questions = self._read(tokens)

        def name(word: Word) -> str:
            return ".".join(str(token if token <= self.words[0] else token - self.words[0]) for token in word)

        words = [word for word, _ in self._words(tokens, 1)]
        edges = (f"{name(one)}>{name(two)}" for one, two in zip(words[::2], words[1::2], strict=True))
        answers = self._answers(tokens)
        asked = (f"{name(q[1])}+{q[0]}={name(a[1])}" for q, a in zip(questions, answers, strict=True))
        return f"{' '.join(edges)} | {' '.join(asked)}"


@functools.lru_cache(maxsize=32)
def _cumulative(least: int, most: int) -> np.ndarray:
    return np.cumsum(1 / (np.arange(least, most + 1) + most**0.5))


FORWARD: dict[str, Any] = {"order": "forward", "statements": 48, "variables": 16, "constants": 16}
FORWARD |= budget(steps=2000, batch_size=16, lr=1e-3)
# 36 names: enough for chains of 8 hops, on which the model is tested
SHUFFLED = {**FORWARD, "order": "shuffled", "variables": 36, "chains": 4}


@registry.register("variable-tracking")
@dataclass(frozen=True)
class VariableTracking(UniformTask):
    """Statements assign a constant or another variable to a variable: return the constant that a variable has.

    Tokens: N variables from 0, ``constants`` constants after them; classes are the constants, from 0. A statement is
    two tokens, target and source.

    ``order="forward"``, N = ``variables``: the target of each of ``statements`` statements is a uniform variable; its
    source is a uniform constant or, with probability 1/2 once two variables have a value, a variable uniform among
    those that have one. Labels at sources that are variables: the value that the target gets, which is the source's
    present one. A table of values, read once from left to right, solves it.

    ``order="shuffled"``: ``chains`` chains with distinct constants, x_0 = c, x_1 = x_0, ..., x_h = x_(h-1) with h =
    ``hops``, whose variables are distinct and drawn from all N = max(``variables``, chains (h + 1)). All statements
    come in random order, among them ``noise`` times as many of two filler tokens (the last of the vocabulary); then
    every variable once, in random order, with its chain's constant as the label. Reading order does not help.

    Source: after the variable tracking of Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context
    Language Models?" (arXiv:2404.06654), section 3.2, which has one chain in text, so that every variable in it is an
    answer. Both laws are ours.

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
        "shuffled": {**SHUFFLED, "hops": 2},
        "shuffled-hard": {**SHUFFLED, "hops": 4},
        # no paper trains on this task; RULER asks language models at lengths from 4,096
        "paper": {"order": "forward", "statements": 2048, "variables": 64, "constants": 64},
    }

    order: Literal["forward", "shuffled"] = parameter("forward", "statements in order of reading, or chains shuffled")
    statements: int = parameter(48, "forward: number of statements", at_least=2, at_most=MAX_LENGTH // 2)
    variables: int = parameter(
        16, "number of variables; shuffled: at least as many as a sample has", at_least=2, at_most=2**16
    )
    constants: int = parameter(16, "number of constants", at_least=2, at_most=2**16)
    chains: int = parameter(4, "shuffled: number of chains", at_least=1, at_most=2**10)
    hops: int = parameter(4, "shuffled: statements from the first variable of a chain to its last", at_least=0)
    noise: float = parameter(0.0, "shuffled: filler statements for each statement", at_least=0, at_most=64)

    def check(self) -> None:
        if self.order == "shuffled":
            if self.chains > self.constants:
                self.refuse(f"chains must be at most constants ({self.constants}), found {self.chains}")
            if self._used > 2**16:
                self.refuse(f"chains (hops + 1) must be at most {2**16:_}, found {self._used:_}")

    @property
    def _used(self) -> int:
        """Variables of a sample, shuffled."""
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

    @property
    def draws(self) -> int:
        if self.order == "forward":
            return 4 * self.statements
        return self._names + self.chains + self._statements + self._used

    def made(self, u: Uniforms) -> Batch:
        x = self._forward(u) if self.order == "forward" else self._shuffled(u)
        return Batch(x, self.label_all(x))

    def _forward(self, u: Uniforms) -> np.ndarray:
        count, rows = self.statements, np.arange(len(u))
        target, constant = u.whole(self.variables, count), self.variables + u.whole(self.constants, count)
        copies, pick = u.take(count) < 0.5, u.take(count)
        x = np.empty((len(u), 2 * count), dtype=np.int64)
        x[:, ::2] = target
        known = np.zeros((len(u), self.variables), dtype=np.int64)  # variables that have a value, in order of time
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
        """Of each statement: the value assigned or -1, hops from its constant, statements since the source's."""
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
        """Of each question: the token at the end of its chain, and the statements on the way, less one."""
        end = 2 * self._statements
        leads = np.tile(
            np.arange(self.input.width), (len(x), 1)
        )  # each token leads to itself, a variable to its source
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
        if ((target == self._filler) != (source == self._filler)).any():
            at = 2 * int(((target == self._filler) != (source == self._filler)).argmax())
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

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent constant, and one that stands in the text: the last before (forward), or the first."""
        if self.order == "forward":
            return {**super().baselines(), "last-constant": self.rule(self._last_constant)}
        return {**super().baselines(), "first-constant": self.rule(self._first_constant)}

    def _last_constant(self, x: np.ndarray) -> np.ndarray:
        where = np.maximum.accumulate(np.where(x >= self._names, np.arange(x.shape[1]), 0), axis=1)
        return np.take_along_axis(x, where, axis=1) - self._names

    def _first_constant(self, x: np.ndarray) -> np.ndarray:
        first = ((x >= self._names) & (x < self._filler)).argmax(axis=1)[:, None]
        return np.take_along_axis(x, first, axis=1) - self._names

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By hops from the constant; forward also by tokens since the source got its value, in octaves."""
        shape = batch.y.shape
        if self.order == "forward":
            _, hops, since = self._read(batch.x)
            odd = slice(1, None, 2)
            return {"hops": spread(hops, shape, odd), "distance": spread(octave(2 * since), shape, odd)}
        return {"hops": spread(self._resolved(batch.x)[1], shape, slice(2 * self._statements, None))}

    def tests(self) -> Mapping[str, Task]:
        """Forward: 2 and 4 times the statements; shuffled: 2, 4 and 8 hops as far as there are variables."""
        if self.order == "forward":
            return self.scaled("statements", by=(2, 4))
        room = {hops for hops in (2, 4, 8) if hops != self.hops and self.chains * (hops + 1) <= self._names}
        return self.further({f"hops-{hops}": {"hops": hops, "variables": self._names} for hops in sorted(room)})

    def text(self, batch: Batch, index: int) -> str:
        """Statements as ``x2=x0``, constants as numbers; then values in brackets (forward), or the questions."""
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        end = 2 * self._statements

        def name(token: int) -> str:
            return f"x{token}" if token < self._names else "." if token == self._filler else str(token - self._names)

        pairs = (
            f"{name(x[at])}={name(x[at + 1])}" + (f"({y[at + 1]})" if y[at + 1] >= 0 else "") for at in range(0, end, 2)
        )
        asked = (f"x{x[at]}:{y[at]}" for at in range(end, len(x)))
        return " ".join(pairs) + (" | " + " ".join(asked) if self.order == "shuffled" else "")
