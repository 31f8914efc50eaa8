"""``rapo/word_problems``: generated grade-school word problems, with an expert that solves them in the text protocol.

(seed, split, index) -> WordProblem -> Question, ExpertTrajectory
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any, ClassVar

from rapo_rllib.envs.base import LazyQuestions, solved
from rapo_rllib.envs.options import SeedOptions, ToolEnvOptions, read_options
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.envs.word_problems.pieces import DAYS, NAMES_HE, NAMES_SHE, PLACES, THEMES, Piece, Theme
from rapo_rllib.settings.knobs import knob
from rapo_rllib.types import ExpertTrajectory, Question
from rapo_rllib.validation import require

_OPERATORS = {"+": "+", "-": "-", "*": "*", "/": "//"}
_MAX_FEW = 6
_MAX_GROWTH = 10  # no quantity grows past this many times max_number
_MAX_EVENTS = 2
_DRAWS = 200  # tries to draw a problem with the wanted number of steps
MAX_STEPS = 4
_STEPS = f"[fewest, most] in 1..{MAX_STEPS}"
_TEST_SHARE = 5  # one problem in five, by its hash, belongs to the test split
_ATTEMPTS = 1000  # tries to draw a problem of the right split
_NAME = re.compile(r"word-(?P<split>train|test)-\d+-(?P<index>\d+)")


@dataclass(frozen=True)
class Composition:
    """A template: the sentences of a story, in order."""

    theme: Theme
    pieces: tuple[Piece, ...]  # opening, events, ending

    @property
    def name(self) -> str:
        """The name of the template, unique among all, for example ``collection/has+buys+now``."""
        return f"{self.theme.name}/{'+'.join(piece.name for piece in self.pieces)}"

    @property
    def num_steps(self) -> int:
        """Number of arithmetic operations in the solution."""
        return sum(len(piece.steps) for piece in self.pieces)


@dataclass(frozen=True)
class Operation:
    """One arithmetic step, in Python."""

    code: str  # "12 + 5"
    value: int  # 17


@dataclass(frozen=True)
class WordProblem:
    """A question with its solution."""

    template: str
    numbers: tuple[int, ...]  # drawn for the pieces, in order
    text: str
    operations: tuple[Operation, ...]

    @property
    def answer(self) -> int:
        """The value of the last operation."""
        return self.operations[-1].value


@cache
def compositions(num_steps: int) -> tuple[Composition, ...]:
    """Return all templates whose solution takes ``num_steps`` operations."""
    found = []
    for theme in THEMES:
        for count in range(_MAX_EVENTS + 1):
            for opening in theme.openings:
                for events in permutations(theme.events, count):
                    found += [Composition(theme, (opening, *events, ending)) for ending in theme.endings]
    return tuple(composition for composition in found if composition.num_steps == num_steps)


def make_problem(rng: random.Random, num_steps: int, max_number: int) -> WordProblem:
    """Draw one problem of ``num_steps`` operations with numbers as ``max_number`` bounds them."""
    choices = compositions(num_steps)
    for _ in range(_DRAWS):
        composition = rng.choice(choices)
        worked_out = _work_out(composition, rng, max_number)
        if worked_out is not None:
            slots, operations = worked_out
            text = _told(composition, slots, rng)
            numbers = tuple(number for piece_slots in slots for number in piece_slots.values())
            return WordProblem(composition.name, numbers, text, operations)
    raise ValueError(f"env_config.max_number = {max_number!r}: no story of {num_steps} steps works out; raise it")


def draw_number(how: str, x: int, max_number: int, rng: random.Random) -> int | None:
    """Draw a number for a slot in the way ``how``, given the running quantity ``x``; None if no number fits."""
    if how == "divisor":
        fitting = [d for d in range(2, max_number + 1) if x % d == 0 and d < x]
        return rng.choice(fitting) if fitting else None
    low, high = {
        "many": (2, max_number),
        "few": (2, min(_MAX_FEW, max_number)),
        "part": (2, x - 2),
        "above": (x + 2, x + max_number),
    }[how]
    return rng.randint(low, high) if low <= high else None


def _work_out(
    composition: Composition, rng: random.Random, max_number: int
) -> tuple[list[dict[str, int]], tuple[Operation, ...]] | None:
    """Draw the numbers of every piece and compute the operations; None if no number fits or a result is out of range."""
    x = 0
    slots: list[dict[str, int]] = []
    operations: list[Operation] = []
    for piece in composition.pieces:
        drawn: dict[str, int] = {}
        for slot, how in piece.numbers.items():
            number = draw_number(how, x, max_number, rng)
            if number is None:
                return None
            drawn[slot] = number
        known = {"x": x, **drawn}
        for step in piece.steps:
            operation = _operation(step, known)
            if not 2 <= operation.value <= _MAX_GROWTH * max_number:
                return None
            operations.append(operation)
            known["s"] = operation.value
        x = known["s"] if piece.steps else known["x"]
        slots.append(drawn)
    return slots, tuple(operations)


def _operation(step: str, known: dict[str, int]) -> Operation:
    left, operator, right = step.split()
    a, b = known[left], known[right]
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]
    return Operation(f"{a} {_OPERATORS[operator]} {b}", value)


def _told(composition: Composition, slots: list[dict[str, int]], rng: random.Random) -> str:
    words = _cast(composition.theme, rng)
    sentences = [piece.text.format(**words, **drawn) for piece, drawn in zip(composition.pieces, slots, strict=True)]
    rng.random()  # unused draw: without it a seed would give other problems than those that figures were measured with
    return " ".join(sentences)


def _cast(theme: Theme, rng: random.Random) -> dict[str, str]:
    """Draw the persons and things of a story. The friend is of the other gender, so that "she" and "he" are clear."""
    female = rng.random() < 0.5
    own, other = (NAMES_SHE, NAMES_HE) if female else (NAMES_HE, NAMES_SHE)
    she, her, possessive = ("she", "her", "Her") if female else ("he", "him", "His")
    words = {"name": rng.choice(own), "friend": rng.choice(other), "she": she, "her": her, "Her": possessive}
    words |= {"item": rng.choice(theme.items), "place": rng.choice(PLACES), "day": rng.choice(DAYS)}
    return words | {"She": she.capitalize()}


@dataclass(frozen=True)
class WordProblemsOptions(SeedOptions, ToolEnvOptions):
    """The ``env_config`` keys of ``rapo/word_problems``, in addition to those of every tool environment."""

    steps: tuple[int, ...] = knob(
        (1, 3), "fewest and most arithmetic operations of a solution", at_least=1, at_most=MAX_STEPS, rule=_STEPS
    )
    step_weights: tuple[float, ...] | None = knob(
        None,
        "relative frequency of each number of operations in `steps`; None: all alike",
        above=0,
        rule="a list of numbers above 0, one for each number of operations in `steps`, or null",
    )
    max_number: int = knob(
        20,
        "largest number in a story, unless it is a part of a result, or lies above one; results may be ten times as large",
        at_least=5,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        pair = len(self.steps) == 2 and self.steps[0] <= self.steps[1]
        require(pair, "steps", list(self.steps), f"must be {_STEPS}")
        weights = self.step_weights
        fitting = weights is None or len(weights) == self.steps[1] - self.steps[0] + 1
        require(
            fitting, "step_weights", list(weights or ()), f"must have one weight for each number in steps = {list(self.steps)}"
        )

    @property
    def expert_tool(self) -> str:
        """The tag of the tool that the expert calls."""
        names = [entry.get("name") if isinstance(entry, Mapping) else entry for entry in self.tools]
        return "calculator" if "calculator" in names else "python"


def split_of(problem: WordProblem) -> str:
    """Find a problem's split by its template and numbers alone: no seed puts a problem of one split into the other."""
    digest = hashlib.sha256(f"{problem.template} {problem.numbers}".encode()).digest()
    return "test" if digest[0] % _TEST_SHARE == 0 else "train"


class WordProblemQuestions(LazyQuestions):
    """The questions of one split; question ``i`` depends only on the options, the split and ``i``."""

    def __init__(self, options: WordProblemsOptions, split: str) -> None:
        super().__init__(options.count(split))
        self._options, self._split = options, split

    def problem(self, index: int) -> WordProblem:
        """Make problem ``index`` with its solution."""
        options = self._options
        rng = random.Random(f"{options.seed}/{self._split}/{index}")
        for _ in range(_ATTEMPTS):
            problem = make_problem(rng, self._num_steps(rng), options.max_number)
            if split_of(problem) == self._split:
                return problem
        raise ValueError(f"env_config.max_number = {options.max_number!r}: too few different problems; raise it")

    def _num_steps(self, rng: random.Random) -> int:
        low, high = self._options.steps
        weights = self._options.step_weights
        return rng.randint(low, high) if weights is None else rng.choices(range(low, high + 1), weights)[0]

    def make(self, index: int) -> Question:
        """Return question ``index``."""
        return self.question(index, self.problem(index))

    def question(self, index: int, problem: WordProblem) -> Question:
        """Return ``problem`` as question ``index``."""
        name = f"word-{self._split}-{self._options.seed}-{index}"
        return Question(id=name, text=problem.text, answer=str(problem.answer), source="word_problems")


class WordProblems(ToolEnv):
    """Grade-school word problems of one to four arithmetic operations, with whole numbers as answers."""

    options_class: ClassVar[type[ToolEnvOptions]] = WordProblemsOptions
    _solved: tuple[Question, frozenset[str] | None] | None = None  # last question of ``step_right``

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> WordProblemQuestions:
        """Return the questions of ``split``."""
        return WordProblemQuestions(read_options(WordProblemsOptions, env_config), split)

    @classmethod
    def expert_trajectories(cls, env_config: Mapping[str, Any]) -> Iterator[ExpertTrajectory]:
        """Yield the solver's trajectory for every training question, in order."""
        options = read_options(WordProblemsOptions, env_config)
        source = WordProblemQuestions(options, "train")
        for index in range(len(source)):
            problem = source.problem(index)
            calls = [(operation.code, str(operation.value)) for operation in problem.operations]
            steps = solved(calls, str(problem.answer), options.expert_tool, options.protocol)
            yield ExpertTrajectory(source.question(index, problem), steps, 1.0, "word_problems/solver")

    def step_right(self, question: Question, output: str) -> bool | None:
        """Check whether an output is the value of one of the solution's operations; None for a question from elsewhere."""
        if self._solved is None or self._solved[0] != question:
            self._solved = question, self._values(question)
        values = self._solved[1]
        return None if values is None else output.strip() in values

    def _values(self, question: Question) -> frozenset[str] | None:
        """Compute the values of the operations that solve a question; None if these options do not make that question."""
        named = _NAME.fullmatch(question.id)
        if named is None:
            return None
        problem = WordProblemQuestions(self.options, named["split"]).problem(int(named["index"]))
        return frozenset(str(operation.value) for operation in problem.operations) if problem.text == question.text else None
