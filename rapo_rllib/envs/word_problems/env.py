"""``rapo/word_problems``: generated grade-school word problems, with an expert that solves them in the text protocol.

(seed, split, index) -> WordProblem -> Question, ExpertTrajectory
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rapo_rllib.envs.base import LazyQuestions, solved
from rapo_rllib.envs.options import SeedOptions, ToolEnvOptions, read_options
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.envs.word_problems.problem import WordProblem, make_problem
from rapo_rllib.settings.knobs import knob
from rapo_rllib.types import ExpertTrajectory, Question
from rapo_rllib.validation import require

MAX_STEPS = 4
_STEPS = f"[fewest, most] in 1..{MAX_STEPS}"
_TEST_SHARE = 5  # every fifth instance belongs to the test split
_ATTEMPTS = 1000
_NAME = re.compile(r"word-(?P<split>train|test)-\d+-(?P<index>\d+)")


@dataclass(frozen=True)
class WordProblemsOptions(SeedOptions, ToolEnvOptions):
    """Keys of ``env_config`` of ``rapo/word_problems``, beside those of every tool environment."""

    steps: tuple[int, ...] = knob(
        (1, 3), "fewest and most arithmetic operations of a solution", at_least=1, at_most=MAX_STEPS, rule=_STEPS
    )
    step_weights: tuple[float, ...] | None = knob(
        None,
        "relative frequency of each number of operations in `steps`; None: all alike",
        above=0,
        rule="a list of numbers above 0, one for each number of operations in `steps`, or null",
    )
    max_number: int = knob(20, "largest number in a story; results may be ten times as large", at_least=5)

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
        """The tag that the expert calls."""
        names = [entry.get("name") if isinstance(entry, Mapping) else entry for entry in self.tools]
        return "calculator" if "calculator" in names else "python"


def split_of(problem: WordProblem) -> str:
    """The split an instance belongs to, whatever the seed: template and numbers decide, so neither split can leak."""
    digest = hashlib.sha256(f"{problem.template} {problem.numbers}".encode()).digest()
    return "test" if digest[0] % _TEST_SHARE == 0 else "train"


class WordProblemQuestions(LazyQuestions):
    """The questions of one split; number ``i`` depends on the options, the split and ``i`` alone."""

    def __init__(self, options: WordProblemsOptions, split: str) -> None:
        super().__init__(options.count(split))
        self._options, self._split = options, split

    def problem(self, index: int) -> WordProblem:
        """Problem ``index`` with its solution."""
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
        """Question ``index``."""
        return self.question(index, self.problem(index))

    def question(self, index: int, problem: WordProblem) -> Question:
        """``problem`` as question ``index``."""
        name = f"word-{self._split}-{self._options.seed}-{index}"
        return Question(id=name, text=problem.text, answer=str(problem.answer), source="word_problems")


class WordProblems(ToolEnv):
    """Grade-school word problems of one to four arithmetic operations, with whole numbers as answers."""

    options_class: ClassVar[type[ToolEnvOptions]] = WordProblemsOptions
    _solved: tuple[Question, frozenset[str] | None] | None = None  # the last question that was asked about

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> WordProblemQuestions:
        """The questions of ``split``."""
        return WordProblemQuestions(read_options(WordProblemsOptions, env_config), split)

    @classmethod
    def expert_trajectories(cls, env_config: Mapping[str, Any]) -> Iterator[ExpertTrajectory]:
        """The solver's trajectory for every training question, in order."""
        options = read_options(WordProblemsOptions, env_config)
        source = WordProblemQuestions(options, "train")
        for index in range(len(source)):
            problem = source.problem(index)
            calls = [(operation.code, str(operation.value)) for operation in problem.operations]
            steps = solved(calls, str(problem.answer), options.expert_tool, options.protocol)
            yield ExpertTrajectory(source.question(index, problem), steps, 1.0, "word_problems/solver")

    def step_right(self, question: Question, output: str) -> bool | None:
        """Whether a call's output is the value of one of the solution's operations; None for a question from elsewhere."""
        if self._solved is None or self._solved[0] != question:
            self._solved = question, self._values(question)
        values = self._solved[1]
        return None if values is None else output.strip() in values

    def _values(self, question: Question) -> frozenset[str] | None:
        """The values of the operations that solve it; None if these options do not make it."""
        named = _NAME.fullmatch(question.id)
        if named is None:
            return None
        problem = WordProblemQuestions(self.options, named["split"]).problem(int(named["index"]))
        return frozenset(str(operation.value) for operation in problem.operations) if problem.text == question.text else None
