"""Sample the groups of each training step, on the local engine or as a stream from remote engines.

cursor --questions--> env runners --groups--> mixed with off-policy trajectories --> kept, or replaced by others
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ray.rllib.utils.schedules.scheduler import Scheduler

from rapo_rllib.batching.credit import group_has_signal
from rapo_rllib.batching.off_policy import OffPolicyMixing
from rapo_rllib.buffer.layered import BufferView
from rapo_rllib.env_runner.dispatch import sample_questions
from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.env_runner.stream.ledger import QuestionLedger
from rapo_rllib.env_runner.stream.runner import Conditions
from rapo_rllib.env_runner.stream.sampler import StreamSampler
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.envs.expert_starts import ExpertRows, ExpertStarts, GuidedQuestions
from rapo_rllib.envs.unaided_success import UnaidedSuccess
from rapo_rllib.rollout.retriever import RetrievalFailures
from rapo_rllib.settings import ObjectiveSettings, Settings, UpdateSettings
from rapo_rllib.types import Question, TrajectoryGroup


class Sampling:
    """Source of the groups of each training step.

    Args:
        settings: of the job.
        cursor: of the questions.
        mixing: of off-policy trajectories into groups; None: nothing is mixed in.
        buffer_view: returns the present view of the buffer; None if the job has no buffer.
        starts: steps after which some groups begin; None: all groups begin with their question.
        rows: single steps that some groups consist of; None: all groups consist of whole trajectories.
        unaided: knows how often the policy is right without retrieval; None: all questions retrieve alike.
    """

    def __init__(
        self,
        settings: Settings,
        cursor: QuestionCursor,
        mixing: OffPolicyMixing | None,
        buffer_view: Callable[[], BufferView | None],
        starts: ExpertStarts | None = None,
        rows: ExpertRows | None = None,
        unaided: UnaidedSuccess | None = None,
    ) -> None:
        self._settings, self._cursor, self._mixing, self._buffer_view = settings, cursor, mixing, buffer_view
        self._guides, self._rows = [guide for guide in (starts, rows, unaided) if guide is not None], rows
        self._order = GuidedQuestions(cursor, starts, rows, unaided)
        chance: Any = settings.rollout.retrieval_prob
        self._chance, self._env_steps = Scheduler(fixed_value_or_schedule=chance, framework="torch"), 0
        self._failures = RetrievalFailures(settings.buffer.uri)
        self._group: Any = None
        self._restore: Callable[[], Any] = lambda: None
        self._stream: StreamSampler | None = None  # of remote env runners; None: the engine is local

    def start(self, env_runner_group: Any, restore: Callable[[], Any]) -> None:
        """Take RLlib's env runners; ``restore`` brings restarted ones back with the current weights."""
        self._group, self._restore = env_runner_group, restore
        if env_runner_group.local_env_runner is not None:
            env_runner_group.local_env_runner.own_questions.cursor = self._cursor
        if not self._settings.rllib.num_env_runners:
            return
        update = self._settings.update
        rounds = MAX_SAMPLING_ROUNDS if update.dynamic_sampling else 1
        waits = update.stale_groups == "wait"
        ledger = QuestionLedger(self._order, update.questions_per_step, update.max_staleness, waits, rounds)
        sizes = (self._settings.engine.max_num_seqs, self._settings.rollout.group_size)
        self._stream = StreamSampler(env_runner_group, ledger, *sizes, restore, self._settings.rllib.sample_timeout_s)

    @property
    def retrieval_prob(self) -> float:
        """The chance of a retrieval now."""
        return float(self._chance.get_current_value())

    def take(self) -> SampleResult:
        """Sample the groups of one training step."""
        result = self._sampled()
        for guide in self._guides:
            result.values |= guide.learn([*result.groups, *result.left_out])
        return result

    def _sampled(self) -> SampleResult:
        if self._stream is not None:
            return self._take_streamed(self._stream)
        roll_out = partial(self._roll_out, retrieval_prob=self.retrieval_prob, env_steps=self._env_steps)
        return sample_batch(roll_out, self._order, self._settings.update, self._settings.objective)

    def reached(self, env_steps: int) -> None:
        """Move the schedules to the generated steps that the training has sampled so far."""
        self._chance.update(timestep=env_steps)
        if self._rows is not None:
            self._rows.reached(env_steps)
        self._env_steps = env_steps

    def set_version(self, version: int) -> None:
        """Count staleness from this version of the weights, which every engine has confirmed."""
        if self._stream is not None:
            self._stream.set_version(version)

    def end_update(self) -> None:
        """Note that the update is over."""
        if self._stream is not None:
            self._stream.end_update()

    def get_state(self) -> dict[str, Any]:
        """Return the cursor's place, and the questions that were handed out and not trained on: they are asked again."""
        return self._cursor.get_state() if self._stream is None else self._stream.cursor_state(self._cursor)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the cursor, so that the same questions come next."""
        self._cursor.set_state(state)

    def forget(self) -> None:
        """Drop all groups under way, as the run goes on from another state."""
        if self._stream is not None:
            self._stream.forget()

    def close(self) -> None:
        """Stop asking env runners."""
        if self._stream is not None:
            self._stream.close()

    def _take_streamed(self, stream: StreamSampler) -> SampleResult:
        update, objective = self._settings.update, self._settings.objective

        def accepts(group: TrajectoryGroup) -> bool:
            return not update.dynamic_sampling or group_has_signal(group, objective)

        now = Conditions(self.retrieval_prob, self._env_steps, self._buffer_view())
        result = stream.take(now, lambda group: self._mixed([group])[0], accepts)
        self._failures.add(result.stats)
        return result

    def _roll_out(self, questions: list[Question], retrieval_prob: float, env_steps: int) -> SampleResult:
        result = sample_questions(
            self._group,
            questions,
            restore=self._restore,
            timeout_s=self._settings.rllib.sample_timeout_s,
            retrieval_prob=retrieval_prob,
            env_steps=env_steps,
            buffer_view=self._buffer_view(),
        )
        result.retrieval_prob = retrieval_prob
        self._failures.add(result.stats)
        result.groups = self._mixed(result.groups)
        return result

    def _mixed(self, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return groups if self._mixing is None else self._mixing.mixed(groups)


RollOut = Callable[[list[Question]], SampleResult]
MAX_SAMPLING_ROUNDS = 4  # of dynamic sampling: a step ends even if hardly any group has signal


def sample_batch(
    roll_out: RollOut, cursor: GuidedQuestions, settings: UpdateSettings, objective: ObjectiveSettings
) -> SampleResult:
    """Roll out the next questions; with dynamic sampling (DAPO), groups without signal are replaced by others.

    If no group of any round has signal, the first round is returned, for its metrics. Groups that are not trained on are in
    ``left_out``: success rates count them, and their good steps may enter the buffer.
    """
    wanted = settings.questions_per_step
    first = roll_out(_next(cursor, wanted))
    if not settings.dynamic_sampling:
        return first
    kept, rolled_out = _with_signal(first, objective), list(first.groups)
    for _ in range(MAX_SAMPLING_ROUNDS - 1):
        if len(kept.groups) >= wanted:
            break
        more = roll_out(_next(cursor, wanted - len(kept.groups)))
        rolled_out += more.groups
        kept.extend(_with_signal(more, objective))
    found = kept if kept.groups else first
    found.left_out = [group for group in rolled_out if all(group is not own for own in found.groups)]
    found.groups_dropped = len(rolled_out) - len(kept.groups)
    return found


def _with_signal(result: SampleResult, objective: ObjectiveSettings) -> SampleResult:
    return replace(result, groups=[group for group in result.groups if group_has_signal(group, objective)])


def _next(cursor: GuidedQuestions, count: int) -> list[Question]:
    return [question for _, question in cursor.take_places(count)]
