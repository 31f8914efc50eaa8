r"""The task: chains of two or three calculations, one to a tool call, each with the result of the one before.

    7 + 5 * 3 - 4 =                             read from left to right, without precedence
    <calc>7+5</calc>      -> 12                 step 0: every solver takes it
    <calc>12*3</calc>     -> 36                 the steps that matter: who stops here answers 12, which is wrong
    <calc>36-4</calc>     -> 32
    <answer>\boxed{32}</answer>

The expert takes every step. Its trajectories are what the Step-Trace Buffer is made from.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rapo_rllib.envs.base import LazyQuestions
from rapo_rllib.envs.options import ToolEnvOptions, check_split, read_options
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.rewards import Episode, Score, shared_scorer
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import ExpertTrajectory, Question

RETRIEVAL_SENTENCE = "A step of another solver:"
_CALL = re.compile(r"(\d{1,3})([+\-*])(\d{1,3})")
OTHERS = 100_000  # added to a seed, of which there are few
_TEST_SHARE = 5  # every fifth chain is a test question, whatever the seed


@dataclass(frozen=True)
class Chain:
    """A first number, and operations with a number each; no value on the way is below 0 or above 99."""

    first: int
    operations: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The question."""
        return f"{self.first}" + "".join(f" {sign} {number}" for sign, number in self.operations) + " ="

    @property
    def values(self) -> tuple[int, ...]:
        """The first number and what each operation makes of it."""
        values = [self.first]
        for sign, number in self.operations:
            values.append(apply(values[-1], sign, number))
        return tuple(values)

    def call(self, index: int) -> str:
        """Step ``index`` as a solver writes it."""
        sign, number = self.operations[index]
        return f"<calc>{self.values[index]}{sign}{number}</calc>"


def apply(value: int, sign: str, number: int) -> int:
    """One operation."""
    return {"+": value + number, "-": value - number, "*": value * number}[sign]


def calc(input: str) -> str:
    """Do one operation on two whole numbers.

    Args:
        input: such as `12+5`.
    """
    found = _CALL.fullmatch(input.replace(" ", ""))
    return "?" if found is None else str(apply(int(found[1]), found[2], int(found[3])))


def make_chain(rng: random.Random, lengths: tuple[int, ...]) -> Chain:
    """A random chain of one of ``lengths``."""
    while True:
        operations = []
        for _ in range(rng.choice(lengths)):
            sign = rng.choice("+-*")
            operations.append((sign, rng.randint(2, 9)))
        chain = Chain(rng.randint(2, 20), tuple(operations))
        if all(0 <= value <= 99 for value in chain.values) and chain.values[-1] not in chain.values[:-1]:
            return chain


def parse_chain(text: str) -> Chain:
    """The chain of a question."""
    first, *rest = text.removesuffix(" =").split()
    return Chain(int(first), tuple((sign, int(number)) for sign, number in zip(rest[::2], rest[1::2], strict=True)))


def split_of(chain: Chain) -> str:
    """Decided by the chain itself, so that no seed and no imitated trace can leak."""
    return "test" if hashlib.sha256(chain.text.encode()).digest()[0] % _TEST_SHARE == 0 else "train"


def answer_text(value: int) -> str:
    """The last step."""
    return f"<answer>\\boxed{{{value}}}</answer>"


def paid_steps(answer: str | None, question: Question, episode: Episode) -> Score:
    """A scorer: the answer as always, and 1 to each step that calculates a value of the chain for the first time.

    It tells more than the answer does, so what is learned with it is to be held against what others learn with it.
    """
    missing = [str(value) for value in parse_chain(question.text).values[1:]]
    earned = []
    for step in episode.steps:
        found = step.tool is not None and step.observation in missing
        if found:
            missing.remove(step.observation)
        earned.append(float(found))
    score = shared_scorer("math")(answer, question, episode)
    return Score(score.value, score.correct, steps=earned)


@dataclass(frozen=True)
class ChainsOptions(ToolEnvOptions):
    """Keys of ``env_config`` beside those of every tool environment."""

    tools: tuple[Any, ...] = ("learning_parts.chains:calc",)
    lengths: tuple[int, ...] = (3,)  # calculations of a chain
    num_train: int = 400
    num_test: int = 200
    seed: int = 0
    traces_of_others: bool = False  # the expert has solved as many other chains, and none of the training questions


class ChainQuestions(LazyQuestions):
    """The chains of one split and seed."""

    def __init__(self, options: ChainsOptions, split: str) -> None:
        check_split(split)
        super().__init__(options.num_train if split == "train" else options.num_test)
        self._options, self._split = options, split

    def chain(self, index: int) -> Chain:
        """Chain ``index``."""
        rng = random.Random(f"{self._options.seed}/{self._split}/{index}")
        while True:
            chain = make_chain(rng, self._options.lengths)
            if split_of(chain) == self._split:
                return chain

    def make(self, index: int) -> Question:
        """Question ``index``."""
        chain = self.chain(index)
        return Question(f"chain-{self._split}-{self._options.seed}-{index}", chain.text, str(chain.values[-1]), source="chains")


def expert_steps(chain: Chain, settings: ProtocolSettings) -> tuple[str, ...]:
    """Every calculation, then the answer."""
    calls = [chain.call(i) + render_observation(str(value), settings) for i, value in enumerate(chain.values[1:])]
    return (*calls, answer_text(chain.values[-1]))


class Chains(ToolEnv):
    """Chains of calculations."""

    options_class: ClassVar[type[ToolEnvOptions]] = ChainsOptions

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> ChainQuestions:
        """The questions of ``split``."""
        return ChainQuestions(read_options(ChainsOptions, env_config), split)

    @classmethod
    def expert_trajectories(cls, env_config: Mapping[str, Any]) -> Iterator[ExpertTrajectory]:
        """One for every training question, or for as many others."""
        options = read_options(ChainsOptions, env_config)
        asked = ChainQuestions(options, "train")
        texts = {asked.chain(index).text for index in range(len(asked))} if options.traces_of_others else set()
        source = ChainQuestions(replace(options, seed=options.seed + OTHERS), "train") if options.traces_of_others else asked
        for index in (index for index in range(len(source)) if source.chain(index).text not in texts):
            yield ExpertTrajectory(source[index], expert_steps(source.chain(index), options.protocol), 1.0, "chains/expert")

    def step_right(self, question: Question, output: str) -> bool | None:
        """Whether a call's output is a value of the chain."""
        return output in {str(value) for value in parse_chain(question.text).values[1:]}
