r"""Make what another agent wrote a trajectory to train on: tokens of its steps, observations apart. algorithm.md section 11.

ExpertTrajectory (texts of steps) --split_observation--> what it wrote, what a tool answered --tokens--> Trajectory

Pieces are encoded as in a rollout: each alone, what was written up to the closing tag, then the observation; the last step ends
where the policy's would: with its answer, and the token that ends a turn, so that this is learned too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import EXPERT, ExpertTrajectory, Trajectory, TrajectoryGroup


def split_observation(step: str, settings: ProtocolSettings) -> tuple[str, str]:
    r"""Cut a step behind its tool call, where the rendered result begins.

    >>> split_observation("<python>3 + 5</python>\n<result>\n8\n</result>\n", ProtocolSettings())
    ('<python>3 + 5</python>', '\n<result>\n8\n</result>\n')

    Args:
        step: text of one step in the text protocol.
        settings: the protocol's tags.

    Returns:
        What the agent wrote and what the tool answered; the latter empty for a step without a result.
    """
    tag = re.escape(settings.result_tag)
    # the first one behind a closing tag: whatever a tool printed, results quoted in it included, is never taken for written
    found = re.search(rf"(?<=>)\s*<{tag}>.*</{tag}>\s*\Z", step, flags=re.DOTALL)
    return (step, "") if found is None else (step[: found.start()], step[found.start() :])


def expert_tokens(
    expert: ExpertTrajectory, prompt_ids: Sequence[int], chat: ChatProtocol, policy_version: int = 0
) -> Trajectory:
    """A trajectory of origin ``expert``: its tokens are trained, its observations are not.

    Args:
        expert: texts of its steps, and its reward.
        prompt_ids: ``[P]`` of the group that it joins.
        chat: encodes.
        policy_version: of the group.
    """
    result = opened(expert, prompt_ids, policy_version)
    for index, text in enumerate(expert.steps):
        append_expert_step(result, text, chat, is_last=index == len(expert.steps) - 1)
    return result


def opened(expert: ExpertTrajectory, prompt_ids: Sequence[int], policy_version: int = 0) -> Trajectory:
    """A trajectory of origin ``expert`` without any token yet."""
    return Trajectory(
        expert.question.id,
        list(prompt_ids),
        policy_version=policy_version,
        origin=EXPERT,
        reward=expert.reward,
        correct=expert.reward > 0,
        format_ok=True,
        end="answer",
    )


def expert_step(group: TrajectoryGroup, chat: ChatProtocol) -> Trajectory:
    """The step that the expert wrote where a group writes single steps, behind the same given ones; it is right.

    Args:
        group: of a question with ``expected``, with at least one member that began.
        chat: encodes.
    """
    member, question = group.counted[0], group.question
    done = ExpertTrajectory(question, (question.expected,), 1.0, EXPERT)
    result = opened(done, member.prompt_ids, group.policy_version)
    result.append_given(member.token_ids[: member.steps[0].start])
    written, _ = split_observation(question.expected, chat.settings)
    append_expert_step(result, written, chat, is_last=f"</{chat.settings.answer_tag}>" in written)
    result.steps[-1].state = member.steps[0].state
    return result


def append_expert_step(result: Trajectory, text: str, chat: ChatProtocol, is_last: bool) -> None:
    """Append the tokens of one step and of its result; behind an answer that ends it, the token that ends a turn."""
    written, observation = split_observation(text, chat.settings)
    answers = is_last and not observation
    if answers:
        written = _up_to_the_answer(written, chat.settings)
    step = result.append_expert([*chat.encode(written), *(chat.end_ids[:1] if answers else [])], written)
    step.observation = observation
    result.append_observation(chat.encode(observation))
    result.text += written + observation


def _up_to_the_answer(text: str, settings: ProtocolSettings) -> str:
    """Without what stands behind the answer, a last newline say: there the policy is asked for the end of its turn."""
    head, closing, _ = text.partition(f"</{settings.answer_tag}>")
    return head + closing
