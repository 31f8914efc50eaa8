"""The unaided form of a trajectory that retrieved: the trajectory as it would read without help. algorithm.md section 12.

Trajectory (step traces in their tags) --unaided_trajectory--> Trajectory (off-policy) --samples.py--> an additional sample

RAPO trains the text after a shown step only in the context of that step: nothing teaches the policy to do without the step.
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
    """Add the unaided form to every trajectory that retrieved and has such a form.

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
    r"""Build the unaided form of a trajectory, up to the last token that is trained.

    Example: the policy wrote ``a``, was shown ``<retrieve>b</retrieve>``, and wrote ``c``::

        imitated   a b     b is trained
        own        a b c   b and c are trained

    The fallback text is no step: it is always left out, and never trained.

    The form ends before the first shown step that would teach to guess: a step whose author wrote an accepted answer, or
    gave any answer. The step's tool result may hold an accepted answer.

    Args:
        trajectory: ended, with at least one retrieved step.
        question: holds the accepted answers.
        how: ``imitated`` or ``own``.
        chat: encodes shown steps in the policy's own form.

    Returns:
        An off-policy trajectory whose trained tokens are of kind ``EXPERT``; None if there is nothing to train, or a shown
        step cannot be put in the policy's own form.
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
    """Return whether a shown text gives an answer away, so that the policy need not find one any more."""
    if not shown.is_step:
        return shows_answer(shown.text, question.answers)
    written, _ = split_observation(shown.text.strip(), chat.settings)
    return bool(shown.answer) or shows_answer(written, question.answers)


def _end(trajectory: Trajectory, helpful: list[Retrieval], behind: bool) -> int:
    """Find where copying ends: after the last helpful step, or with ``behind`` before the next shown step or at the end."""
    if not behind:
        return helpful[-1].stop
    left_out = trajectory.retrievals[len(helpful) :]
    return left_out[0].start if left_out else len(trajectory.token_ids)


def _copy(source: Trajectory, target: Trajectory, start: int, stop: int, trained: bool) -> None:
    """Copy tokens ``[start, stop)``; ``trained``: the policy's tokens as off-policy ones, since their context was another."""
    for kind, run in groupby(range(start, stop), source.kinds.__getitem__):
        token_ids = [source.token_ids[index] for index in run]
        if trained and kind == TokenKind.POLICY:
            target.append_expert(token_ids)
        else:
            target.append_observation(token_ids)
