"""A language model as off-policy agent: the rollout of training, on-policy unless it is given a retriever.

    questions --RolloutStream--> groups --attempt_of--> every question with its attempts

Steps come about exactly as the policy's, with the same prompt, tags, tools and budgets; an engine of our own writes them, or
an endpoint (``agents/endpoint.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt, OnAttempt
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.protocol.turns import RolloutProtocol
from rapo_rllib.rollout.engine import Engine
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.rollout.stream import RolloutStream
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

HELD = 4  # trajectories that have ended and wait for a slow question, in multiples of those at once
_ADVANCE_S = 0.1  # then it is seen whether another question has room; a complete group comes sooner


class OffPolicyAgent:
    """Writes attempts at questions.

    Args:
        engine: writes steps.
        chat: the job's protocol with the tokenizer that budgets are counted with.
        envs: a pool of the job's environments.
        settings: budgets of the job; ``group_size`` is the number of attempts.
        at_once: a question is begun while fewer trajectories are under way.
        seed: of all that is sampled, and questions are given back in their order: what is stored of equal attempts does not
            depend on who was faster. None: another one every time, and questions are given back as they are finished.
        retriever: answers the histories of evaluations with retrieval; None: nothing is retrieved.
        retrieval_prob: chance of a retrieval after a completed step.
        on_stats: told what happened before questions are given back; what it raises ends the answers.
    """

    def __init__(
        self,
        engine: Engine,
        chat: RolloutProtocol,
        envs: EnvPool,
        settings: RolloutSettings,
        at_once: int,
        seed: int | None = None,
        retriever: Retriever | None = None,
        retrieval_prob: float = 0.0,
        on_stats: Callable[[RolloutStats], None] = lambda stats: None,
    ) -> None:
        self._engine, self._chat, self._at_once = engine, chat, at_once
        self._size, self._in_order = settings.group_size, seed is not None
        self._retrieval_prob, self._on_stats = retrieval_prob, on_stats
        num_hybrid = 0 if retriever is None else settings.group_size
        self._loop = RolloutLoop(engine, chat, envs, replace(settings, num_hybrid=num_hybrid, branching=None), retriever, seed)

    def answers(self, questions: Iterable[Question], on_attempt: OnAttempt) -> Iterator[AnsweredQuestion]:
        """Every question with its attempts, as they are complete: others are under way meanwhile.

        Raises:
            AgentError: it cannot be asked at all.
            EngineError: its engine broke.
            RetrievalError: ``on_stats`` says that the buffer does not answer.
        """
        left, complete = iter(questions), dict[int, TrajectoryGroup]()
        begun = given = ended = 0

        def count_end() -> None:
            nonlocal ended
            ended += 1
            on_attempt()

        with closing(RolloutStream(self._loop, on_end=count_end)) as stream:
            while True:
                while self._has_room(begun, given, ended) and (question := next(left, None)) is not None:
                    stream.begin([(begun, question)], self._retrieval_prob)
                    begun += 1
                if given == begun:
                    return
                try:
                    complete |= stream.advance(_ADVANCE_S)
                except (Exception, KeyboardInterrupt):
                    yield from map(self._answered, complete.values())  # they were paid for
                    raise
                self._on_stats(stream.stats.take())
                for place in self._ready(complete, given):
                    yield self._answered(complete.pop(place))
                    given += 1

    def _has_room(self, begun: int, given: int, ended: int) -> bool:
        """Whether another question may begin; ``ended`` counts trajectories, the others questions."""
        return begun * self._size - ended < self._at_once and ended - given * self._size < HELD * self._at_once

    def _ready(self, complete: Mapping[int, TrajectoryGroup], given: int) -> list[int]:
        """Places of the questions that are given back now."""
        return list(itertools.takewhile(complete.__contains__, itertools.count(given)) if self._in_order else complete)

    def _answered(self, group: TrajectoryGroup) -> AnsweredQuestion:
        """The attempts in the order in which they were sampled; a question that is only a seed has the text of its reset."""
        texts = (trajectory.question_text for trajectory in group.trajectories)
        asked = replace(group.question, text=next(filter(None, texts), group.question.text))
        return AnsweredQuestion(asked, tuple(attempt_of(t, self._chat.settings) for t in group.trajectories))

    def close(self) -> None:
        """Stop threads and free the engine; an environment that hangs is left behind."""
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
        sum(step.stop - step.start if step.num_sampled is None else step.num_sampled for step in trajectory.steps),
        trajectory.unanswered,
        correct=trajectory.correct,
        format_ok=trajectory.format_ok,
        num_tool_calls=sum(len(step.uses) for step in trajectory.steps),
        retrieved=tuple(retrieval.trace_id for retrieval in trajectory.retrievals),
        failed_retrievals=trajectory.failed_retrievals,
        score_failure=trajectory.score_failure,
        seconds=trajectory.seconds,
    )
