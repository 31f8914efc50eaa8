"""From shown to known: a trajectory that retrieved, as it would read without help. algorithm.md section 12.

Trajectory (step traces in their tags) --unaided_trajectory--> Trajectory (off-policy) --samples.py--> a sample beside its own

RAPO trains what was written behind a shown step in the context of that step alone: nothing teaches the policy to do without it.
Here the same text is trained once more, with the shown steps in the policy's own form.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, takewhile

from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.errors import RequestError
from rapo_rllib.protocol.expert_tokens import ExpertWriter, split_observation
from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.types import EXPERT, Question, Retrieval, TokenKind, Trajectory, TrajectoryGroup


def add_unaided(groups: Iterable[TrajectoryGroup], how: str, chat: RolloutProtocol) -> None:
    """Give every trajectory that retrieved its unaided form, where it has one.

    Args:
        groups: rolled out; changed in place.
        how: ``ObjectiveSettings.shown_steps``; ``context``: nothing is done.
        chat: encodes shown steps in the policy's own form.
    """
    if how == "context":
        return
    for group in groups:
        for trajectory in group.counted:
            if trajectory.retrievals:
                trajectory.unaided = unaided_trajectory(trajectory, group.question, how, chat)


def unaided_trajectory(trajectory: Trajectory, question: Question, how: str, chat: RolloutProtocol) -> Trajectory | None:
    r"""Return the trajectory without help, up to the last token that is trained.

    Example: the policy wrote ``a``, was shown ``<retrieve>b</retrieve>``, and wrote ``c``::

        imitated   a b     b is trained
        own        a b c   b and c are trained

    The fallback text is no step: it is taken away in any case, and never trained.

    It ends where help would teach to guess: before the first shown step whose author wrote an accepted answer, or any; the
    result of its tool may hold the accepted one.

    Args:
        trajectory: ended, with at least one retrieved step.
        question: whose accepted answers are known.
        how: ``imitated`` or ``own``.
        chat: encodes.

    Returns:
        An off-policy trajectory whose trained tokens are of kind ``EXPERT``; None where there is nothing to train, or a shown
        step has no form of the policy's own.
    """
    helpful = list(takewhile(lambda shown: not _tells(shown, question, chat), trajectory.retrievals))
    if not helpful:
        return None
    end = _end(trajectory, helpful, behind=how != "imitated")
    found = Trajectory(trajectory.question_id, trajectory.prompt_ids, policy_version=trajectory.policy_version, origin=EXPERT)
    start, writer = 0, ExpertWriter(found, chat)
    for shown in helpful:
        _copy(trajectory, found, start, shown.start, trained=start > 0 and how != "imitated")
        start = shown.stop
        if shown.is_step:
            writer.turn_open = chat.shows_in_turn
            try:
                writer.write(shown.text.strip(), is_last=False)
            except RequestError:
                return None
            if chat.shows_in_turn:  # the turn in which it was shown goes on
                writer.open_turn()
    _copy(trajectory, found, start, end, trained=True)
    found.reward = trajectory.reward
    return found if found.num_trained else None


def _tells(shown: Retrieval, question: Question, chat: RolloutProtocol) -> bool:
    """Return whether the answer need not be found any more behind it."""
    if not shown.is_step:
        return shows_answer(shown.text, question.answers)
    written, _ = split_observation(shown.text.strip(), chat.settings)
    return bool(shown.answer) or shows_answer(written, question.answers)


def _end(trajectory: Trajectory, helpful: list[Retrieval], behind: bool) -> int:
    """Return the token before which the unaided form ends: that of the next shown step, or of the trajectory."""
    if not behind:
        return helpful[-1].stop
    left_out = trajectory.retrievals[len(helpful) :]
    return left_out[0].start if left_out else len(trajectory.token_ids)


def _copy(source: Trajectory, target: Trajectory, start: int, stop: int, trained: bool) -> None:
    """Append tokens ``[start, stop)``; the policy's trained ones count as off-policy, since their context was another."""
    for kind, run in groupby(range(start, stop), source.kinds.__getitem__):
        token_ids = [source.token_ids[index] for index in run]
        if trained and kind == TokenKind.POLICY:
            target.append_expert(token_ids)
        else:
            target.append_observation(token_ids)
