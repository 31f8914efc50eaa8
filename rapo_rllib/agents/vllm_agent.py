"""A language model in an engine of our own as off-policy agent: the rollout of training, on-policy unless given a retriever.

It uses ``rollout/loop.py`` as it is, so that its steps come about exactly as the policy's: same prompt, tags, tools and
budgets, in tokens of its own tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import gymnasium

from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt, OnAttempt
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.protocol.turns import RolloutProtocol
from rapo_rllib.rollout.engine import Engine
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory


class VLLMAgent:
    """Rolls out questions in bunches, so that the engine is busy and a kill costs one bunch.

    Args:
        engine: holds the agent's weights.
        chat: the job's protocol with the agent's tokenizer.
        make_env: makes one environment of the job.
        settings: budgets of the job; ``group_size`` is the number of attempts.
        at_once: questions of a bunch.
        seed: of all that is sampled; None: another one every time.
        retriever: answers the histories of evaluations with retrieval; None: nothing is retrieved.
        retrieval_prob: chance of a retrieval after a completed step.
        on_stats: told what happened in every bunch, before its questions are given back; what it raises ends the answers.
    """

    def __init__(
        self,
        engine: Engine,
        chat: RolloutProtocol,
        make_env: Callable[[], Any],
        settings: RolloutSettings,
        at_once: int,
        seed: int | None,
        retriever: Retriever | None,
        retrieval_prob: float,
        on_stats: Callable[[RolloutStats], None],
    ) -> None:
        self._engine, self._chat, self._at_once = engine, chat, at_once
        self._retrieval_prob, self._on_stats = retrieval_prob, on_stats
        self._asked: dict[str, str] = {}  # question id -> text
        envs = EnvPool(lambda: _Remembering(make_env(), self._asked), chat.settings.answer_tag)
        num_hybrid = 0 if retriever is None else settings.group_size
        self._loop = RolloutLoop(
            engine, chat, envs, replace(settings, num_hybrid=num_hybrid, branching=None), retriever, seed=seed
        )

    def answers(self, questions: Iterable[Question], on_attempt: OnAttempt) -> Iterator[AnsweredQuestion]:
        """Every question with its attempts. Raises ``EngineError`` if the engine breaks, and what ``on_stats`` raises."""
        left = iter(questions)
        while bunch := list(islice(left, self._at_once)):
            self._asked.clear()
            groups = self._loop.run(bunch, retrieval_prob=self._retrieval_prob, on_progress=_each(on_attempt))
            self._on_stats(self._loop.stats)
            for question, group in zip(bunch, groups, strict=True):
                asked = replace(question, text=self._asked.get(question.id, question.text))
                yield AnsweredQuestion(asked, tuple(attempt_of(t, self._chat.settings) for t in group.trajectories))

    def close(self) -> None:
        """Stop threads and free the engine."""
        self._loop.close()
        self._engine.close()


def attempt_of(trajectory: Trajectory, settings: ProtocolSettings) -> Attempt:
    """A trajectory as texts: every step with its observation, without what a last token wrote beyond a closing tag."""
    last = len(trajectory.steps) - 1
    steps = tuple(
        step.as_text + (render_observation(step.observation, settings) if index < last else "")
        for index, step in enumerate(trajectory.steps)
    )
    return Attempt(
        steps,
        trajectory.reward,
        trajectory.end,
        trajectory.error,
        trajectory.num_generated,
        correct=trajectory.correct,
        format_ok=trajectory.format_ok,
        num_tool_calls=sum(len(step.uses) for step in trajectory.steps),
        retrieved=tuple(retrieval.trace_id for retrieval in trajectory.retrievals),
        failed_retrievals=trajectory.failed_retrievals,
        score_failure=trajectory.score_failure,
        seconds=trajectory.seconds,
    )


def _each(on_attempt: OnAttempt) -> Callable[[int, int], None]:
    """``on_attempt`` once per ended trajectory; the loop tells how many have ended."""
    told = 0

    def on_progress(ended: int, _: int) -> None:
        nonlocal told
        while told < ended:
            told += 1
            on_attempt()

    return on_progress


class _Remembering(gymnasium.Wrapper[str, str, str, str]):
    """Notes how the environment asks each question: one that is nothing but a seed has no text before."""

    def __init__(self, env: Any, asked: dict[str, str]) -> None:
        super().__init__(env)
        self._asked = asked

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._asked[(options or {})["question"].id] = str(observation)
        return observation, info
