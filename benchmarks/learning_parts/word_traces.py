r"""The base policies of the word problems: SmolLM2 after a warm start on flawed traces of problems of three operations.

The solvers calculate well, one operation a call, but after a result they nearly always answer at once: ``diligence`` of them
take the next step. Those that were told to be careful (their questions begin with ``Be careful.``) take every step, which shows
that the policy can; no question of the task says so. Behind some results stands a step of another solver: who is shown one
that fits goes on from its result, who is shown another passes over it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rapo_rllib.envs.word_problems.env import WordProblemQuestions, WordProblemsOptions
from rapo_rllib.envs.word_problems.problem import Operation, WordProblem
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.settings import ProtocolSettings

CAREFUL = "Be careful. "
TASK: dict[str, Any] = {"steps": [3, 3], "num_train": 400, "num_test": 500, "tools": ["calculator"], "max_tool_calls": 5}
PROTOCOL: dict[str, Any] = {
    "system_prompt": (
        "Solve the problem step by step. <calculator>12 + 5</calculator> does one operation and shows its result. Between "
        "<retrieve> and </retrieve> you may see a step of another solver. End with <answer>\\boxed{the number}</answer>."
    ),
    "retrieval_sentence": "A step of another solver:",
}
IMITATED_SEED = 1_000_000  # of the problems that are imitated: none is asked in a run


@dataclass(frozen=True)
class Flawed:
    """How traces are flawed."""

    diligence: float = 0.03  # share of decisions after a result that go on, where the problem does
    careful: float = 0.5  # share of traces whose solver was told to be careful, and always goes on
    shown: float = 0.5  # share of results behind which a step of another solver stands
    fitting: float = 0.5  # share of those that belong to this problem, where it goes on
    count: int = 1600
    steps: tuple[int, int] = (3, 3)  # fewest and most operations
    seed: int = 0


def write_traces(file: Path, how: Flawed) -> None:
    """Write the traces as rows that a warm start reads, in place of what is there."""
    options = WordProblemsOptions(steps=how.steps, seed=IMITATED_SEED + how.seed, num_train=how.count, tools=("calculator",))
    source = WordProblemQuestions(options, "train")
    rng = random.Random(how.seed)
    with file.open("w", encoding="utf-8") as lines:
        for index in range(how.count):
            problem, other = source.problem(index), source.problem(rng.randrange(how.count))
            careful = rng.random() < how.careful
            steps = list(flawed_steps(problem, other, rng, how, 1.0 if careful else how.diligence))
            row = {
                "id": f"flawed-{index}",
                "question": CAREFUL * careful + problem.text,
                "gold": str(problem.answer),
                "steps": steps,
            }
            lines.write(json.dumps(row) + "\n")


def flawed_steps(problem: WordProblem, other: WordProblem, rng: random.Random, how: Flawed, diligence: float) -> Iterator[str]:
    """What a solver who goes on with probability ``diligence`` writes and reads, cut into steps."""
    done, before = 0, ""
    while True:
        yield before + step_text(problem.operations[done])
        done, before = done + 1, ""
        left = done < len(problem.operations)
        if rng.random() < how.shown:
            fits = left and rng.random() < how.fitting
            before = shown_text(problem.operations[done] if fits else rng.choice(other.operations))
            done += fits
        if done == len(problem.operations) or rng.random() >= diligence:
            yield before + answer_text(problem.operations[done - 1].value)
            return


def step_text(operation: Operation) -> str:
    """A call and its result."""
    return f"<calculator>{operation.code}</calculator>{render_observation(str(operation.value), protocol())}"


def shown_text(operation: Operation) -> str:
    """The same as the policy reads a retrieved step."""
    return ChatProtocol(None, protocol()).retrieved_text(step_text(operation))


def answer_text(value: int) -> str:
    """The last step."""
    return f"<answer>\\boxed{{{value}}}</answer>"


def protocol() -> ProtocolSettings:
    """The text protocol of task and traces."""
    return ProtocolSettings(**PROTOCOL)
