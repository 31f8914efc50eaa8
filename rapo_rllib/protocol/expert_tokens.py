r"""Conversion of another agent's steps to a trajectory to train on, observations apart. algorithm.md section 11.

ExpertTrajectory (texts of steps) --split_observation--> what it wrote, what a tool answered --tokens--> Trajectory

A step gives the pieces that a rollout has, each encoded by itself: the agent's text in the policy's format, then
the observation. The last step ends as the policy's would, with the token that ends a turn, so that the policy learns it, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rapo_rllib.errors import RequestError
from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.protocol.steps import boxed_answer, parse_step, render_observation, said_in
from rapo_rllib.protocol.turns import Observation, Turn
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import EXPERT, ExpertTrajectory, RetrievedTrace, StepTrace, Trajectory, TrajectoryGroup

NOTHING_PRINTED = "(no output)"  # answer of the Python tool to code that prints nothing


def split_observation(step: str, settings: ProtocolSettings) -> tuple[str, str]:
    r"""Split a step behind its tool call, where the rendered result begins.

    >>> split_observation("<python>3 + 5</python>\n<result>\n8\n</result>\n", ProtocolSettings())
    ('<python>3 + 5</python>', '\n<result>\n8\n</result>\n')

    Args:
        step: text of one step in the text protocol.
        settings: the protocol's tags.

    Returns:
        The agent's text, and the tool's answer; the answer is empty for a step without a result.
    """
    tag = re.escape(settings.result_tag)
    # the first result behind a closing tag: nothing that a tool printed, e.g. a quoted result, is taken for the agent's text
    found = re.search(rf"(?<=>)\s*<{tag}>.*</{tag}>\s*\Z", step, flags=re.DOTALL)
    return (step, "") if found is None else (step[: found.start()], step[found.start() :])


def expert_tokens(
    expert: ExpertTrajectory, prompt_ids: Sequence[int], chat: RolloutProtocol, policy_version: int = 0
) -> Trajectory:
    """Build a trajectory of origin ``expert``: the agent's tokens are trained, observations are not.

    Args:
        expert: texts of its steps, and its reward.
        prompt_ids: ``[P]`` of the group that it joins.
        chat: writes the steps as the policy would have written them.
        policy_version: of the group.

    Raises:
        RequestError: a step cannot be written in the policy's format.
    """
    result = opened(expert, prompt_ids, policy_version)
    writer = ExpertWriter(result, chat)
    for index, text in enumerate(expert.steps):
        writer.write(text, is_last=index == len(expert.steps) - 1)
    return result


def opened(expert: ExpertTrajectory, prompt_ids: Sequence[int], policy_version: int = 0) -> Trajectory:
    """Begin a trajectory of origin ``expert``, without tokens yet."""
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


def expert_step(group: TrajectoryGroup, chat: RolloutProtocol) -> Trajectory:
    """Build the expert's trajectory for a group of single steps: the group's given steps, then the expert's, with reward 1.

    Args:
        group: of a question with ``expected``; at least one member began.
        chat: writes the step as the policy would have written it.

    Raises:
        RequestError: the step cannot be written in the policy's format.
    """
    member, question = group.counted[0], group.question
    done = ExpertTrajectory(question, (question.expected,), 1.0, EXPERT)
    result = opened(done, member.prompt_ids, group.policy_version)
    result.append_given(member.token_ids[: member.steps[0].start])
    written, _ = split_observation(question.expected, chat.settings)
    ExpertWriter(result, chat).write(written, is_last=f"</{chat.settings.answer_tag}>" in written)
    result.steps[-1].state = member.steps[0].state
    return result


@dataclass
class ExpertWriter:
    """Writer of another agent's steps to a trajectory, in the form in which a rollout records the policy's steps."""

    result: Trajectory
    chat: RolloutProtocol
    turn_open: bool = True  # the agent's next turn has begun
    unanswered: Turn | None = None  # the last turn, if it ended and got no answer

    def write(self, text: str, is_last: bool) -> None:
        """Append one step and its result; after an answer that ends the trajectory, append the token that ends a turn.

        Raises:
            RequestError: the step cannot be written in the policy's format, or is not the last one and calls nothing.
        """
        chat, result = self.chat, self.result
        written, observed = split_observation(text, chat.settings)
        answers = is_last and not observed
        piece = chat.written(_up_to_the_answer(written, chat.settings) if answers else written)
        turn = chat.read(piece.token_ids, piece.text, "", "stop")
        ended = bool(piece.token_ids) and piece.token_ids[-1] in chat.end_ids
        if ended and turn.answer is not None and not is_last:
            raise RequestError(f"a step before the last one calls nothing: {text[:200]}")
        self.open_turn()
        text_start, ends = len(result.text), chat.end_ids[:1] if answers and not ended else []
        step = result.append_expert([*piece.token_ids, *ends], str(turn))
        step.record, step.text_start = turn.record, text_start
        result.text += turn + turn.spill
        self.turn_open, self.unanswered = False, turn if ended else None
        if observed:
            step.observation = said_in(observed, chat.settings)
            self._answer(step.observation, turn)

    def show(self, trace: str) -> None:
        """Append a step trace as retrieval shows it."""
        if self.chat.shows_in_turn:
            self.open_turn()
        piece, shown = self.chat.retrieved(trace), StepTrace("", self.result.question_text, "", trace, self.result.reward)
        self.result.append_retrieved(piece.token_ids, RetrievedTrace(shown, 0.0))
        self.result.text += piece.text

    def open_turn(self) -> None:
        """Open the agent's next turn, unless it is open: append an empty answer if one is missing, then the turn's opening."""
        if not self.turn_open:
            if self.unanswered is not None:
                self._answer("", self.unanswered)
            self.result.append_observation(self.chat.opening.token_ids)
            self.result.text += self.chat.opening.text
            self.turn_open = True

    def _answer(self, said: str, turn: Turn) -> None:
        piece = self.chat.observation(Observation.of([said]), turn)
        self.result.append_observation(piece.token_ids)
        self.result.text += piece.text
        self.unanswered = None


def _up_to_the_answer(text: str, settings: ProtocolSettings) -> str:
    """Cut the text behind the answer, e.g. a last newline: there the policy is asked for the end of its turn."""
    head, closing, _ = text.partition(f"</{settings.answer_tag}>")
    return head + closing


def does_the_same(written: str, observation: str, step: str, settings: ProtocolSettings, tools: Sequence[str]) -> bool:
    r"""Return whether two steps, ``written`` and ``step``, do the same: the reward of single steps (algorithm.md section 14).

    To demand the expert's exact text is too strict, to demand only the answer too weak (arXiv 2603.21383, 2510.25992). Two
    steps do the same if they make the same call, if the same tool answers both alike, or if they give the same answer.

    >>> step = "<python>3 + 5</python>\n<result>\n8\n</result>\n"
    >>> does_the_same("<python>5+3</python>", "8", step, ProtocolSettings(), ["python"])
    True

    Args:
        written: the policy's step in the text protocol, without the tool's answer.
        observation: the tool's answer to ``written``; empty: the answers of tools are not compared.
        step: the expert's step in the text protocol, with the tool's answer.
        settings: the protocol's tags.
        tools: tags of the tools.

    Returns:
        False if only one step calls a tool, or only one gives an answer. If neither step does, whether the texts are the same.
    """
    other, answered = split_observation(step, settings)
    ours, theirs = parse_step(written, settings, tools), parse_step(other, settings, tools)
    if theirs.answer is not None or ours.answer is not None:
        both = theirs.answer is not None and ours.answer is not None
        return both and _plain(boxed_answer(ours.answer or "")) == _plain(boxed_answer(theirs.answer or ""))
    if theirs.tool_tag is None:  # a move in a game
        return bool(written.strip()) and _plain(written) == _plain(other)
    if ours.tool_tag is None or ours.tool_tag != theirs.tool_tag:
        return False
    if _plain(ours.tool_input or "") == _plain(theirs.tool_input or ""):
        return True
    return bool(observation.strip()) and _plain(render_observation(observation, settings)) == _plain(answered)


def _plain(text: str) -> str:
    """Strip all white space, which does not matter in a comparison: ``3+5`` and ``3 + 5`` are the same."""
    return "".join(text.split())
