"""Score steps that the policy wrote alone again, as if a step trace had been retrieved before them (algorithm.md section 15).

    on-policy trajectories --histories--> retriever --step traces--> engine scores with and without --> Trajectory.view_shifts

Nothing is generated: it costs one pass over a trajectory, and one over each of its histories with the trace behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.protocol.turns import RolloutProtocol
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, Step, Trajectory, TrajectoryGroup

Score = Callable[[Sequence[Sequence[int]]], list[list[float]]]  # teacher-forced logprobs of all tokens but the first


@dataclass(frozen=True)
class _Asked:
    """One step of a trajectory, and the history before it."""

    trajectory: Trajectory
    step: Step
    query: HistoryQuery


def score_in_view(
    groups: Iterable[TrajectoryGroup],
    chat: RolloutProtocol,
    retriever: Callable[[Sequence[HistoryQuery]], list[RetrievedTrace | None]],
    score: Score,
    longest: int,
) -> None:
    """Give every trajectory that retrieved nothing the shifts of its logprobs under step traces, where some are found.

    Args:
        groups: rolled out; changed in place.
        chat: writes step traces as tokens.
        retriever: answers histories; a step has one if another step is before it.
        score: the engine's; by the weights that sampled, or newer ones.
        longest: sequence that it takes, tokens.

    Raises:
        RetrievalError: the buffer does not answer.
    """
    asked = [one for group in groups for t in group.counted if not t.retrievals for one in _histories(t, group.question, chat)]
    if not asked:
        return
    found = [(one, trace) for one, trace in zip(asked, retriever([one.query for one in asked]), strict=True) if trace]
    seen = [(one, ids) for one, trace in found if len(ids := _with_trace(one, trace, chat)) <= longest]
    alone = list({id(one.trajectory): one.trajectory for one, _ in seen}.values())
    scores = score([ids for _, ids in seen] + [[*t.prompt_ids, *t.token_ids] for t in alone])
    without = {id(t): own for t, own in zip(alone, scores[len(seen) :], strict=True)}
    for trajectory in alone:
        trajectory.view_shifts = [0.0] * len(trajectory.token_ids)
    for (one, _), with_trace in zip(seen, scores, strict=False):
        step, trajectory = one.step, one.trajectory
        before = len(trajectory.prompt_ids) - 1
        own = without[id(trajectory)][before + step.start : before + step.stop]
        viewed = with_trace[len(with_trace) - (step.stop - step.start) :]
        trajectory.view_shifts[step.start : step.stop] = [a - b for a, b in zip(viewed, own, strict=True)]


def _histories(trajectory: Trajectory, question: Question, chat: RolloutProtocol) -> list[_Asked]:
    history, asked = "".join(trajectory.given), []
    for index, step in enumerate(trajectory.steps):
        if index:
            name = f"{trajectory.question_id}/view"
            query = HistoryQuery(trajectory.question_text, history.strip(), question.id, name, question.answers)
            asked.append(_Asked(trajectory, step, query))
        history += step.as_text + render_observation(step.observation, chat.settings)
    return asked


def _with_trace(one: _Asked, trace: RetrievedTrace, chat: RolloutProtocol) -> list[int]:
    """The tokens up to the step's end, with the trace where the rollout would have put it."""
    trajectory, step = one.trajectory, one.step
    place = step.start - (0 if chat.shows_in_turn else len(chat.opening.token_ids))
    shown = chat.retrieved(trace.trace.text).token_ids
    tokens = trajectory.token_ids
    return [*trajectory.prompt_ids, *tokens[:place], *shown, *tokens[place : step.stop]]
