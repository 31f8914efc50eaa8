"""A language model as off-policy agent. It runs the rollout of training, and retrieves only if it is given a retriever.

    questions --RolloutStream--> groups --attempt_of--> every question with its attempts

Steps are made exactly as the policy's are, with the same prompt, tags, tools and budgets. They are written by an engine of
our own, or by an endpoint (``agents/endpoint.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.rewards.qa import qa_em_score, qa_score
from rapo_rllib.rewards.score import asks_words
from rapo_rllib.rollout.engine import Engine
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.rollout.stream import RolloutStream
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

_ADVANCE_S = 0.1  # seconds between checks whether another question has room; a complete group ends the wait


@dataclass(frozen=True)
class Attempt:
    r"""One trajectory, as texts in the protocol of the job.

    Example: ``Attempt(("<python>3 + 5</python>\n<result>\n8\n</result>\n", "<answer>8</answer>"), 1.0, "answer")``
    """

    steps: tuple[str, ...]  # each with its observation
    reward: float
    end: str  # answer, eos, length (of tokens or steps), tool_limit or error
    error: str = ""
    tokens: int = 0  # that the agent generated
    predicted: str | None = None  # the answer as it was scored; None: it gave none
    correct: bool = False  # as the environment says
    format_ok: bool = False  # the same
    tool_calls: int = 0
    retrieved: tuple[str, ...] = ()  # ids of the step traces that it was shown, in order
    failed_retrievals: int = 0  # that the buffer did not answer; the attempt went on without them
    score_failure: str = ""  # why the scorer could not judge: "judge/unreachable"
    seconds: float = 0.0  # from its question to its end
    f1: float | None = None  # of an answer in words; None: the question asks for none
    exact_match: float | None = None  # the same

    @property
    def failed(self) -> bool:
        """Whether agent or environment broke; another try may succeed."""
        return self.end == "error"


@dataclass(frozen=True)
class AnsweredQuestion:
    """All attempts at one question."""

    question: Question  # its text as the environment asks it
    attempts: tuple[Attempt, ...]


class OffPolicyAgent:
    """Writer of attempts at questions.

    Args:
        engine: writes steps.
        chat: the job's protocol; its tokenizer counts the budgets.
        envs: a pool of the job's environments.
        settings: budgets of the job; ``group_size`` is the number of attempts.
        at_once: another question is begun while fewer trajectories than this are under way.
        seed: of all sampling; None: another seed in every run.
        retriever: answers histories with step traces, in an evaluation with retrieval; None: nothing is retrieved.
        retrieval_prob: chance of a retrieval after a completed step.
        on_stats: called with the newest statistics before questions are yielded; an exception from it ends ``answers``.
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
        self._size, self._retrieval_prob, self._on_stats = settings.group_size, retrieval_prob, on_stats
        num_hybrid = 0 if retriever is None else settings.group_size
        self._loop = RolloutLoop(engine, chat, envs, replace(settings, num_hybrid=num_hybrid, branching=None), retriever, seed)

    def answers(self, questions: Iterable[Question], on_attempt: Callable[[], None]) -> Iterator[AnsweredQuestion]:
        """Yield each question as soon as all its attempts are complete, while other questions are under way.

        Args:
            questions: with different ids.
            on_attempt: called whenever an attempt has ended.

        Raises:
            AgentError: the agent cannot be asked at all.
            EngineError: its engine broke.
            RetrievalError: the buffer does not answer (raised by ``on_stats``).
        """
        left, begun, given, ended = iter(questions), 0, 0, 0

        def count_end() -> None:
            nonlocal ended
            ended += 1
            on_attempt()

        with closing(RolloutStream(self._loop, on_end=count_end)) as stream:
            while True:
                while begun * self._size - ended < self._at_once and (question := next(left, None)) is not None:
                    stream.begin([(begun, question)], self._retrieval_prob)
                    begun += 1
                if given == begun:
                    return
                complete = stream.advance(_ADVANCE_S)
                self._on_stats(stream.stats.take())
                for _, group in complete:
                    given += 1
                    yield self._answered(group)

    def _answered(self, group: TrajectoryGroup) -> AnsweredQuestion:
        """Convert a group to attempts, in the order of sampling; a question that is only a seed gets the text of its reset."""
        texts = (trajectory.question_text for trajectory in group.trajectories)
        asked = replace(group.question, text=next(filter(None, texts), group.question.text))
        attempts = (attempt_of(trajectory, self._chat.settings) for trajectory in group.trajectories)
        return AnsweredQuestion(asked, tuple(in_words(each, asked) if asks_words(asked) else each for each in attempts))

    def close(self) -> None:
        """Stop threads and free the engine; an environment that hangs is left behind."""
        self._loop.close()
        self._engine.close()


def attempt_of(trajectory: Trajectory, settings: ProtocolSettings) -> Attempt:
    """Convert a trajectory to texts: steps with their observations, without characters of a token beyond a closing tag."""
    last = len(trajectory.steps) - 1
    return Attempt(
        tuple(
            step.as_text + (render_observation(step.observation, settings) if index < last else "")
            for index, step in enumerate(trajectory.steps)
        ),
        trajectory.reward,
        trajectory.end,
        trajectory.error,
        sum(step.stop - step.start if step.num_sampled is None else step.num_sampled for step in trajectory.steps),
        trajectory.predicted or None,
        trajectory.correct,
        trajectory.format_ok,
        tool_calls=sum(len(step.uses) for step in trajectory.steps),
        retrieved=tuple(retrieval.trace_id for retrieval in trajectory.retrievals),
        failed_retrievals=trajectory.failed_retrievals,
        score_failure=trajectory.score_failure,
        seconds=trajectory.seconds,
    )


def in_words(attempt: Attempt, question: Question) -> Attempt:
    """Add F1 and exact match to an attempt at a question whose answer is words."""
    if attempt.predicted is None:
        return replace(attempt, f1=0.0, exact_match=0.0)
    f1, same = qa_score(attempt.predicted, question).value, qa_em_score(attempt.predicted, question).correct
    return replace(attempt, f1=float(f1), exact_match=float(same))
