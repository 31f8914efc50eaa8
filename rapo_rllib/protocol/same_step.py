r"""Does one step do what another one does? The reward of single steps (algorithm.md section 14).

After PivotRL (arXiv 2603.21383) and supervised RL (2510.25992): to write what the expert wrote is asking too much, and to reach
the answer too little. Two steps do the same if they make the same call, if the same tool answers both alike, or if they
give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapo_rllib.protocol.expert_tokens import split_observation
from rapo_rllib.protocol.steps import boxed_answer, parse_step, render_observation
from rapo_rllib.settings import ProtocolSettings

NOTHING_PRINTED = "(no output)"  # what the Python tool says then


def does_the_same(written: str, observation: str, step: str, settings: ProtocolSettings, tools: Sequence[str]) -> bool:
    r"""Whether a step does what ``step`` does.

    >>> step = "<python>3 + 5</python>\n<result>\n8\n</result>\n"
    >>> does_the_same("<python>5+3</python>", "8", step, ProtocolSettings(), ["python"])
    True

    Args:
        written: the one, in the text protocol, without what a tool answered.
        observation: what a tool answered to it; empty: nothing that tells what was done.
        step: the other, with what a tool answered.
        settings: the protocol's tags.
        tools: tags of the tools.

    Returns:
        False where only one of them calls, or answers. Where neither does, whether their texts are the same.
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
    """The text without white space, which decides nothing in a call: ``3+5`` and ``3 + 5`` are the same."""
    return "".join(text.split())
