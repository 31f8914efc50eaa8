"""``rapo/reasoning_gym``: any procedural task of the package reasoning-gym, scored by the task's own verifier.

(task, task_config, seed) -> its data set -> entry -> Question;   answer, entry -> verifier -> Score
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar

from rapo_rllib.envs.base import LazyQuestions, solved
from rapo_rllib.envs.evaluated_answers import is_formula, is_literal
from rapo_rllib.envs.options import SeedOptions, ToolEnvOptions, check_known, installed, read_options
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.rewards import Episode, Score, Scorer, shared_scorer
from rapo_rllib.rewards.score import WRONG
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.tools.calculator import Calculator
from rapo_rllib.types import ExpertTrajectory, Question
from rapo_rllib.validation import require

VERIFIER = "verifier"
CALCULATOR = "calculator"  # the tool that solutions call
# Tasks whose verifier evaluates the answer, as Python or through sympy; a test searches the package's source for others.
EVALUATED = frozenset({"string_insertion", "spiral_matrix", "binary_matrix", "n_queens"})
CALCULATED = frozenset({"simple_integration", "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"})
# Tasks whose questions are chains of numbers, which `solution` works out with the calculator.
SOLVED = ("chain_sum", "decimal_chain_sum")
_SOURCE = "reasoning_gym/calculator"
_NUMBER = r"-?\d+(?:\.\d+)?"
_CHAIN = re.compile(rf"({_NUMBER})((?:\s*[-+]\s*{_NUMBER})+)\s*=\s*\Z")
_TERM = re.compile(rf"([-+])\s*({_NUMBER})")
_TEST_SHARE = 5  # one question in five, by the hash of its text, belongs to the test split
_ATTEMPTS = 200
_SEEDS = 2**31


@dataclass(frozen=True)
class ReasoningGymOptions(SeedOptions, ToolEnvOptions):
    """The ``env_config`` keys of ``rapo/reasoning_gym``, in addition to those of every tool environment."""

    task: str = knob("", "a task of reasoning-gym, for example `chain_sum`")
    task_config: dict = knob(dict, "the task's own keys, for example {min_terms: 2, max_terms: 3}")
    tools: tuple[Any, ...] = knob((), "names or import paths; or {name: ..., options: {...}}", rule="a list of tool names")
    scorer: Any = knob(VERIFIER, "`verifier`: the task's own, whose score is the reward; or one that all environments know")
    require_boxed: bool = knob(False, "a well-formed answer holds one \\boxed{...}")

    def __post_init__(self) -> None:
        if self.scorer == VERIFIER:
            Knobs.__post_init__(self)
        else:
            super().__post_init__()
        check_known("env_config.task", self.task, list(_package().factory.DATASETS), "reasoning-gym")
        clash = sorted({"seed", "size"} & set(self.task_config))
        require(
            not clash, "task_config", self.task_config, f"leave {' and '.join(clash)} out: see seed, num_train and num_test"
        )
        if self.scorer == VERIFIER:  # a task refuses a bad configuration here, not at a question
            _data_set(self.task, _as_json(self.task_config), 0)


class ReasoningGymQuestions(LazyQuestions):
    """The questions of one split; question ``i`` depends only on the options, the split and ``i``."""

    def __init__(self, options: ReasoningGymOptions, split: str) -> None:
        super().__init__(options.count(split))
        self._options, self._split = options, split

    def make(self, index: int) -> Question:
        """Make question ``index``: draw entries for it until one belongs to the split."""
        options = self._options
        for attempt in range(_ATTEMPTS):
            seed = _seed_of(options.seed, self._split, index, attempt)
            entry = entry_of(options, seed)
            if split_of(entry["question"]) == self._split:
                answer = "" if entry["answer"] is None else str(entry["answer"])
                return Question(
                    id=f"{options.task}-{self._split}-{options.seed}-{index}",
                    text=entry["question"],
                    answer=answer,
                    seed=seed,
                    source=f"reasoning_gym/{options.task}",
                )
        raise ValueError(f"env_config.task_config = {options.task_config!r}: too few different questions; make them harder")


def entry_of(options: ReasoningGymOptions, seed: int) -> dict[str, Any]:
    """Make the task's entry for ``seed``, a mapping with ``question``, ``answer`` and ``metadata``."""
    with _lock:  # tasks keep state while they make an entry
        entry: dict[str, Any] = _data_set(options.task, _as_json(options.task_config), seed)[0]
    return entry


def split_of(text: str) -> str:
    """Find a question's split by its text alone: no seed puts a question of one split into the other."""
    return "test" if hashlib.sha256(text.encode()).digest()[0] % _TEST_SHARE == 0 else "train"


class ReasoningGym(ToolEnv):
    """A task of reasoning-gym, in one turn or with tools."""

    options_class: ClassVar[type[ToolEnvOptions]] = ReasoningGymOptions

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> ReasoningGymQuestions:
        """Return the questions of ``split``."""
        return ReasoningGymQuestions(read_options(ReasoningGymOptions, env_config), split)

    @classmethod
    def expert_trajectories(cls, env_config: Mapping[str, Any]) -> Iterator[ExpertTrajectory]:
        """Solve the training questions with the calculator, for the tasks of ``SOLVED``.

        Raises:
            ValueError: the task is another one, or ``tools`` is not ``[calculator]``.
        """
        options = read_options(ReasoningGymOptions, env_config)
        rule = (
            f"only {' and '.join(SOLVED)} bring step traces, and only with tools: [calculator]; record a run's own "
            "(transcripts: true), or have an agent write them (rllib buffer build)"
        )
        require(options.task in SOLVED and list(options.tools) == [CALCULATOR], "task", options.task, rule)
        found = (solution(question, options.protocol) for question in cls.questions(env_config, "train"))
        return (one for one in found if one is not None)

    def make_scorer(self) -> Scorer:
        """Return the task's verifier, unless another scorer is named."""
        return verifier(self.options) if self.options.scorer == VERIFIER else shared_scorer(self.options.scorer)


def verifier(options: ReasoningGymOptions) -> Scorer:
    """Make a scorer from the task's ``score_answer``: the value is that score in [0, 1], and 1 counts as correct.

    An answer that is unsafe to evaluate is wrong. An answer on which the verifier raises is wrong and counted as a failure.
    """

    def score(answer: str | None, question: Question, episode: Episode) -> Score:
        if answer is None or question.seed is None or not may_be_verified(options.task, answer):
            return WRONG
        entry = entry_of(options, question.seed)
        try:
            value = float(_data_set(options.task, _as_json(options.task_config), question.seed).score_answer(answer, entry))
        except Exception as error:  # answers are arbitrary texts, which verifiers are not written for
            return replace(WRONG, failure=f"verifier/{type(error).__name__}")
        return Score(value, value >= 1.0)

    return score


def solution(question: Question, settings: ProtocolSettings) -> ExpertTrajectory | None:
    """Solve a chain of sums from left to right; None if the question is no such chain, or has another answer.

    There is one call for each term after the first.
    """
    chain = _CHAIN.search(question.text)
    if chain is None:
        return None
    calculator, value, calls = Calculator(), chain[1], []
    for sign, number in _TERM.findall(chain[2]):
        expression = f"{value} {sign} {number}"
        value = calculator.run(expression).text
        calls.append((expression, value))
    if float(value) != float(question.answer):
        return None
    return ExpertTrajectory(question, solved(calls, value, calculator.tag, settings), 1.0, _SOURCE)


def may_be_verified(task: str, answer: str) -> bool:
    """Check whether ``answer`` is safe for the verifier of ``task``, which may evaluate it as Python."""
    if task in EVALUATED:
        return is_literal(answer)
    return task not in CALCULATED or is_formula(answer)


_lock = threading.RLock()


@lru_cache(maxsize=64)  # those of questions under way: some tasks keep megabytes in each
def _data_set(task: str, task_config: str, seed: int) -> Any:
    """Create a task's data set of one entry from ``seed``. Raises ``ValueError`` if the task refuses its configuration."""
    config = json.loads(task_config)
    try:
        return _package().create_dataset(task, seed=seed, size=1, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"env_config.task_config = {config!r}: {task} refuses it: {error}") from error


def _as_json(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def _seed_of(seed: int, split: str, index: int, attempt: int) -> int:
    digest = hashlib.sha256(f"{seed}/{split}/{index}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _SEEDS


def _package() -> ModuleType:
    return installed("reasoning_gym", "rapo/reasoning_gym", "reasoning-gym", "reasoning-gym")
