r"""Worked trajectories in which step traces are shown as retrieval will show them; a warm start imitates these trajectories.

ExpertTrajectory --choose_shown--> where a step trace stands, and which --worked_tokens--> Trajectory

A fitting step trace is the step that comes next; behind it, the trajectory goes on with the following step. An unfitting step
trace is of another question; the next step is written as if it were not there. So a policy learns to read shown steps, and not
to copy them blindly.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rapo_rllib.protocol.expert_tokens import ExpertWriter, opened
from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import ExpertTrajectory, Trajectory


@dataclass(frozen=True)
class Shown:
    """A step trace that is shown before a step."""

    text: str  # of a step trace
    fits: bool  # it is the step that comes next


def choose_shown(
    expert: ExpertTrajectory, others: Sequence[ExpertTrajectory], rng: random.Random, shown_share: float, fitting_share: float
) -> dict[int, Shown]:
    """Choose before which steps a step trace is shown: never the first, never two without a written step between them.

    Args:
        expert: the trajectory.
        others: unfitting steps are drawn from these; those of the same question are not taken.
        rng: source of all random choices.
        shown_share: chance that a step trace is shown before a step that may have one.
        fitting_share: chance that a shown step trace fits.
    """
    found: dict[int, Shown] = {}
    index, last = 1, len(expert.steps) - 1
    while index <= last:
        shown = _one(expert, index, others, rng, fitting_share) if rng.random() < shown_share else None
        if shown is not None:
            found[index] = shown
        index += 2 if shown is not None and shown.fits and index < last else 1
    return found


def _one(
    expert: ExpertTrajectory, index: int, others: Sequence[ExpertTrajectory], rng: random.Random, fitting_share: float
) -> Shown | None:
    if rng.random() < fitting_share:
        return Shown(expert.steps[index], True)
    other = rng.choice(others) if others else expert
    return None if other.question.text == expert.question.text else Shown(rng.choice(other.steps), False)


def worked_tokens(
    expert: ExpertTrajectory, prompt_ids: Sequence[int], chat: RolloutProtocol, shown: Mapping[int, Shown]
) -> Trajectory:
    """Build the trajectory as tokens: the author's text is trained; results and shown step traces are not.

    A step that a fitting step trace shows is not written again, unless it is the last one, which only the policy can write.
    A step trace that the author was shown (the step begins with ``<retrieve>...</retrieve>``) is not trained either.

    Args:
        expert: texts of its steps.
        prompt_ids: ``[P]``.
        chat: writes the steps as the policy would have written them.
        shown: index of a step -> step trace that is shown before it; see :func:`choose_shown`.

    Raises:
        RequestError: a step cannot be written in the policy's format.
    """
    result, last = opened(expert, prompt_ids), len(expert.steps) - 1
    writer = ExpertWriter(result, chat)
    for index, text in enumerate(expert.steps):
        here = shown.get(index)
        if here is not None:
            writer.show(here.text)
        if here is None or not here.fits or index == last:
            before, own = split_shown(text, chat.settings)
            if before:
                writer.show(_trace_in(before, chat.settings))
            writer.write(own, is_last=index == last)
    return result


def split_shown(step: str, settings: ProtocolSettings) -> tuple[str, str]:
    r"""Split a step into the step trace that its author was shown, with the line before it, and the author's text.

    >>> split_shown("Use it.\n<retrieve>\n1 + 1\n</retrieve>\n<answer>2</answer>", ProtocolSettings())
    ('Use it.\n<retrieve>\n1 + 1\n</retrieve>\n', '<answer>2</answer>')
    """
    tag = re.escape(settings.retrieve_tag)
    found = re.match(rf"(?:[^\n]*\n)?<{tag}>\n.*?\n</{tag}>\n", step, flags=re.DOTALL)
    return ("", step) if found is None else (found[0], step[found.end() :])


def _trace_in(shown: str, settings: ProtocolSettings) -> str:
    tag = settings.retrieve_tag
    return shown.partition(f"<{tag}>\n")[2].removesuffix(f"\n</{tag}>\n")
