from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import Task, budget, registry
from lrtasks.generators.baselines import Baseline
from lrtasks.generators.tokens import TokenTask, padded_sample, placed
from lrtasks.spec import IGNORED, Batch, Sample, Spec

Word = tuple[int, ...]

PAD = 0


@registry.register("depo")
@dataclass(frozen=True)
class Depo(TokenTask):
    """Read the edges of a cycle in random order; give the node that comes k steps after a given node.

    Let n be the number of nodes v_0, ..., v_(n-1), N the largest of ``nodes``, K = ``hops`` and (V, a, b) = ``words``.
    A node's name is a word of a..b tokens. Its size is uniform, and its tokens are uniform over 1..V; V is added to the
    last token. All names of a sample differ. Tokens: 0 is padding, 1..2V are tokens of words, 2V + k is "k steps" for
    k = 1..K, then come ANSWER and BEGIN.

    A sample is BEGIN, the edges v_i v_(i+1 mod n) in random order, the queries, and padding on the right. There is a
    query for each of min(n, ``queries``) distinct nodes v_i: "k steps", the node, ANSWER and the node v_(i+k mod n).
    The label at ANSWER is the first token of the answer. Each further token is the label at the token before it.

    ``law="published"``: in training n is drawn from ``nodes`` with weight 1/(n + √N), and k from 1..K uniformly. In
    validation and test n = N, and k is uniform over the powers of two up to K, K itself and, if K = 32, 24. Source:
    Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers"
    (arXiv:2512.17351), task Depo; code facebookresearch/PhysicsLM4, which has errors and also labels the token ANSWER.
    ``law="clean"``: n and k are uniform in all splits. Its presets have words of one token, so the end of a word is
    known.

    >>> task = Depo(nodes=3, hops=2, words=(3, 1, 1), law="clean")
    >>> a, b, c, two, ANSWER, BEGIN = 4, 5, 6, 8, 9, 10
    >>> task.answer([BEGIN, b, c, a, b, c, a, two, a, ANSWER, c]).tolist()[-3:]
    [-100, 6, -100]
    """

    group: ClassVar[str] = "hops"
    presets: ClassVar[Presets] = {
        "small": {"law": "clean", "nodes": 4, "hops": 2, "queries": 4, "words": (8, 1, 1)}
        | budget(batch_size=64, lr=3e-3),
        "small-hard": {"law": "clean", "nodes": 24, "hops": 4, "queries": 10, "words": (64, 1, 1)},
        # Depo1 of the paper at its smallest N
        "paper": {"nodes": (3, 225), "hops": 8, "queries": 10, "words": (50, 1, 2)},
    }

    nodes: int | tuple[int, int] = parameter((3, 75), "nodes n; a pair: minimum and maximum", at_least=2, at_most=2**16)
    hops: int = parameter(8, "maximum number of steps K", at_least=1, at_most=1024)
    queries: int = parameter(10, "number of queries per sample, at most one per node", at_least=1, at_most=2**16)
    words: tuple[int, int, int] = parameter(
        (50, 1, 2),
        "vocabulary size V of names, minimum and maximum number of tokens per name (at most 16)",
        at_least=1,
        at_most=2**20,
    )
    law: Literal["published", "clean"] = parameter("published", "distribution of the numbers of nodes and steps")

    def check(self) -> None:
        _, most = self.span("nodes")
        vocab, short, long = self.words
        if not short <= long <= 16:
            found = list(self.words)
            self.refuse(f"words must have a minimum and a maximum of tokens in this order, at most 16, found {found}")
        names = sum(vocab**size for size in range(short, long + 1))
        if names < most:
            self.refuse(f"words {list(self.words)} give {names} names, too few for {most} nodes")

    @property
    def _marks(self) -> tuple[int, int, int]:
        """The last token of words (the token "k steps" is this number plus k), ANSWER and BEGIN."""
        last = 2 * self.words[0]
        return last, last + self.hops + 1, last + self.hops + 2

    @property
    def input(self) -> Spec:
        most, long = self.span("nodes")[1], self.words[2]
        return Spec("token", 1 + 2 * most * long + min(most, self.queries) * (2 + 2 * long), self._marks[2] + 1)

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, 2 * self.words[0] + 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        n = self._count(rng)
        names = self._names(rng, n)
        hop, answer_mark, begin = self._marks
        x = [begin]
        for node in rng.permutation(n).tolist():
            x += names[node]
            x += names[(node + 1) % n]
        y = [IGNORED] * len(x)
        asked = rng.permutation(n)[: self.queries].tolist()
        for node, k in zip(asked, self._steps(rng, len(asked)), strict=True):
            answer = names[(node + k) % n]
            x += [hop + k, *names[node], answer_mark, *answer]
            y += [IGNORED] * (1 + len(names[node])) + [*answer, IGNORED]
        smallest, largest = self.span("nodes")
        fixed = smallest == largest and self.words[1] == self.words[2]
        sample = padded_sample(x, y, self.input.length, PAD)
        return sample._replace(mask=None) if fixed else sample

    def _count(self, rng: np.random.Generator) -> int:
        smallest, largest = self.span("nodes")
        if self.law == "clean":
            return int(rng.integers(smallest, largest + 1))
        if self.testing or smallest == largest:
            return largest
        bounds = np.cumsum(1 / (np.arange(smallest, largest + 1) + largest**0.5))
        return smallest + int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))

    def _steps(self, rng: np.random.Generator, count: int) -> list[int]:
        steps = set(range(1, self.hops + 1))
        if self.law == "published" and self.testing:
            steps = {2**i for i in range(self.hops.bit_length())} | {self.hops} | ({24} if self.hops == 32 else set())
        return [sorted(steps)[i] for i in rng.integers(len(steps), size=count).tolist()]

    def _names(self, rng: np.random.Generator, n: int) -> list[Word]:
        """Draw ``n`` different words; a repeated word is drawn again."""
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
        """Yield the words from position ``at`` on, each with the position after it; stop at the first other token."""
        begin = at
        while at < len(tokens) and 0 < tokens[at] <= 2 * self.words[0]:
            at += 1
            if tokens[at - 1] > self.words[0]:
                yield tuple(tokens[begin:at]), at
                begin = at

    def _read(self, tokens: list[int]) -> tuple[dict[Word, Word], list[tuple[int, Word, int]]]:
        """Return the successor of each node, and the questions: steps, node and position of ANSWER.

        Raises:
            UsageError: if the tokens are not an input of the task.
        """
        hop, answer_mark, begin = self._marks
        if tokens[0] != begin:
            self.refuse(f"an input begins with BEGIN ({begin}), found {tokens[0]}")
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
            steps = tokens[at] - hop
            word = next(self._words(tokens, at + 1), None)
            if not 1 <= steps <= self.hops or word is None or word[1] == len(tokens) or tokens[word[1]] != answer_mark:
                self.refuse(f"a question is steps, a word, ANSWER and a word; found something else at position {at}")
            if word[0] not in after:
                self.refuse(f"the question at position {at} asks for {list(word[0])}, which no edge has")
            questions.append((steps, *word))
            answer = next(self._words(tokens, word[1] + 1), None)
            at = answer[1] if answer else len(tokens)
        if any(tokens[at:]):
            self.refuse(f"only padding (0) may follow padding, found another token after position {at}")
        return after, questions

    def _answers(self, tokens: list[int], steps: int | None = None) -> list[tuple[int, Word, int]]:
        """Return for each question: position of ANSWER, node after ``steps`` (or the asked) steps, and asked steps."""
        after, questions = self._read(tokens)
        found = []
        for asked, node, at in questions:
            for _ in range(asked if steps is None else steps):
                node = after[node]
            found.append((at, node, asked))
        return found

    def label_all(self, x: np.ndarray) -> np.ndarray:
        """Return the labels as the base class does, but refuse invalid inputs. The last answer may be cut."""
        return self._nodes(x, fill=IGNORED)

    def _nodes(self, x: np.ndarray, steps: int | None = None, fill: int = 0) -> np.ndarray:
        answers = (self._answers(tokens, steps) for tokens in x.tolist())
        return placed(x.shape, ([(at, node) for at, node, _ in row] for row in answers), fill)

    def _first_node(self, x: np.ndarray) -> np.ndarray:
        firsts = ((tokens, next(self._words(tokens, 1))[0]) for tokens in x.tolist())
        return placed(x.shape, ([(at, word) for at, _, _ in self._answers(tokens)] for tokens, word in firsts))

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent token, the first node of the sample, and the next node for every k."""
        rules = {"one-node": self.rule(self._first_node), "one-step": self.rule(lambda x: self._nodes(x, steps=1))}
        return {**super().baselines(), **rules}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by the number of steps k."""
        answers = (self._answers(tokens) for tokens in batch.x.tolist())
        return {"steps": placed(batch.x.shape, ([(at, len(node) * [k]) for at, node, k in row] for row in answers))}

    def tests(self) -> dict[str, Task]:
        """Return tests with 2 and 4 times the nodes, if there are enough names."""
        smallest, largest = self.span("nodes")
        more = {n: n * largest if isinstance(self.nodes, int) else (smallest, n * largest) for n in (2, 4)}
        return self.further({f"{n}x": {"nodes": nodes} for n, nodes in more.items()})

    def text(self, batch: Batch, index: int) -> str:
        """Return edges as ``3>7``, then questions as ``3+2=5``; the tokens of a name are joined by dots."""
        tokens = batch.x[index].tolist()
        _, questions = self._read(tokens)

        def name(word: Word) -> str:
            return ".".join(str(token if token <= self.words[0] else token - self.words[0]) for token in word)

        words = [word for word, _ in self._words(tokens, 1)]
        edges = (f"{name(one)}>{name(two)}" for one, two in zip(words[::2], words[1::2], strict=True))
        answers = self._answers(tokens)
        asked = (f"{name(q[1])}+{q[0]}={name(a[1])}" for q, a in zip(questions, answers, strict=True))
        return f"{' '.join(edges)} | {' '.join(asked)}"
