"""Make the off-policy data that a config asks for: the Step-Trace Buffer, trajectories mixed into groups, and given steps.

Flow: settings -> here -> ``buffer/``, ``batching/off_policy.py`` -> ``RAPO``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rapo_rllib.batching.off_policy import ExpertSource, OffPolicyMixing
from rapo_rllib.batching.replay import ReplayStore
from rapo_rllib.config.question_source import QuestionSource
from rapo_rllib.envs.expert_starts import FEWEST_LEFT, ExpertRows, ExpertStarts
from rapo_rllib.monitoring.progress import Progress
from rapo_rllib.settings import Settings
from rapo_rllib.types import ExpertTrajectory, Question

if TYPE_CHECKING:
    from rapo_rllib.algorithm.buffer_growth import BufferUpdater
    from rapo_rllib.algorithm.trial_files import RunName
    from rapo_rllib.buffer.store import StepTraceBuffer


def open_buffer(
    settings: Settings,
    source: QuestionSource,
    progress: Progress,
    run: RunName,
    test_questions: Sequence[Question] = (),
    train_questions: Iterable[Question] = (),
) -> tuple[StepTraceBuffer, BufferUpdater]:
    """Open the job's Step-Trace Buffer, built if it is missing, and make its updater for this run; the caller closes both.

    Args:
        settings: of the job.
        source: has the expert's trajectories, which the buffer may be built from.
        progress: told what is done.
        run: name of this run.
        test_questions: questions of the evaluation, which the buffer must not hold. Questions that are only a seed have no text
            beforehand, and cannot be checked.
        train_questions: questions of the training; ``progress`` is told how many of them have step traces.

    Raises:
        ValueError: the buffer cannot be built, was built from something else, or holds evaluation questions.
        RetrievalError: Milvus does not answer.
    """
    from rapo_rllib.algorithm.buffer_growth import BufferUpdater
    from rapo_rllib.buffer.build import ensure_built
    from rapo_rllib.buffer.leak_guard import LeakGuard, covered_questions
    from rapo_rllib.buffer.store import StepTraceBuffer

    buffer = StepTraceBuffer(settings.buffer)
    progress.say(f"opening the Step-Trace Buffer at {settings.buffer.uri}")
    said = 0

    def on_progress(count: int) -> None:
        nonlocal said
        if count - said >= 250:
            said = count
            progress.say(f"embedded and stored {count} step traces")

    guard = LeakGuard(question.text for question in test_questions)
    traces = None if settings.buffer.traces is None else partial(source.expert_trajectories, settings.buffer.traces)
    count = ensure_built(buffer, traces, settings.buffer.max_traces, on_progress, guard)
    if guard.refused:
        progress.say(f"left out {guard.refused.total()} trajectories that answer questions of the evaluation")
    buffer.prepare()
    covered = covered_questions(buffer, (question.text for question in train_questions))
    of_questions = f": step traces for {covered[0]:,} of {covered[1]:,} training questions" if covered else ""
    progress.say(f"the Step-Trace Buffer holds {count} step traces{of_questions}")
    upkeep = BufferUpdater(buffer, run, settings.protocol, guard)
    upkeep.coverage = covered[0] / covered[1] if covered else None
    return buffer, upkeep


def make_mixing(settings: Settings, asked: QuestionSource, progress: Progress) -> OffPolicyMixing | None:
    """Make the mixing that adds ``off_policy_trajectories`` to each group; None: groups hold rollouts only.

    Raises:
        ValueError: the expert has no trajectory that could be mixed in.
    """
    mixing = settings.off_policy
    if not mixing.off_policy_trajectories:
        return None
    source: ExpertSource | ReplayStore = ReplayStore()
    if mixing.off_policy_source == "expert":
        progress.say("reading the expert's trajectories")
        source = ExpertSource(_experts(settings, asked), asked.protocol(settings), settings.rollout.max_response_tokens)
        progress.say(f"{len(source)} trajectories of the expert can join the groups of their questions")
    return OffPolicyMixing(source, mixing.off_policy_trajectories, seed=settings.rllib.seed or 0)


def make_starts(
    settings: Settings, asked: QuestionSource, progress: Progress, test_questions: Sequence[Question] = ()
) -> tuple[ExpertStarts | None, ExpertRows | None]:
    """Make the sources of given first steps and of single steps; each is None if its share of the groups is 0.

    Raises:
        ValueError: no trajectory of the expert has a positive reward, or none is long enough to begin inside.
    """
    off_policy, seed, size = settings.off_policy, settings.rllib.seed or 0, settings.rollout.group_size
    if not off_policy.expert_start_share and not off_policy.expert_step_share:
        return None, None
    progress.say("reading the trajectories that groups begin inside")
    experts = _experts(settings, asked, test_questions)
    starts = ExpertStarts(experts, off_policy.expert_start_share, size, seed) if off_policy.expert_start_share else None
    if starts is not None and not len(starts):
        raise ValueError(
            f"expert_start_share = {off_policy.expert_start_share}: no trajectory of the expert has more than {FEWEST_LEFT} "
            "steps, so there is nothing to begin behind; set it to 0"
        )
    return starts, ExpertRows(experts, off_policy.expert_step_share, seed) if off_policy.expert_step_share else None


def _experts(settings: Settings, asked: QuestionSource, test_questions: Sequence[Question] = ()) -> list[ExpertTrajectory]:
    """Read the trajectories of ``expert_traces``; trajectories of a file get the job's questions, with seed, turns and tools.

    Raises:
        ValueError: no trajectory has a positive reward; or a file is named, and the job's questions are seeds without text.
    """
    from rapo_rllib.buffer.leak_guard import LeakGuard

    named, guard = settings.off_policy.expert_traces, LeakGuard(question.text for question in test_questions)
    experts = list(guard.keep(asked.expert_trajectories(named, "expert_traces")))
    if not any(expert.reward > 0 for expert in experts):
        raise ValueError(
            f"expert_traces = {named!r}: no trajectory with a positive reward; name a file with some, or leave "
            "off_policy_trajectories, expert_start_share and expert_step_share out"
        )
    if named == "expert":
        return experts
    by_text = {question.text.strip(): question for question in asked.questions("train")}
    if "" in by_text:
        raise ValueError(
            "expert_traces names a file, and the environment's questions are seeds without a text, so that nothing of "
            "the file is of one of them; leave it out where the environment has an expert of its own"
        )
    return [replace(expert, question=by_text.get(expert.question.text.strip(), expert.question)) for expert in experts]
