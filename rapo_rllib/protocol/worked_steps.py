r"""Worked trajectories with steps of others shown in them, as retrieval will show them: what a warm start imitates.

ExpertTrajectory --choose_shown--> where a step trace stands, and which --worked_tokens--> Trajectory

A fitting step trace is the step that comes next: behind it the work goes on with the step after it. An unfitting one is of
another question: the next step is written as if it were not there. So a policy learns to read what it is shown, and not to
take it over blindly.
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
    fits: bool  # it is that very step


def choose_shown(
    expert: ExpertTrajectory, others: Sequence[ExpertTrajectory], rng: random.Random, shown_share: float, fitting_share: float
) -> dict[int, Shown]:
    """Choose before which steps a step trace is shown: never the first, never two without a written step between them.

    Args:
        expert: the trajectory.
        others: unfitting steps are drawn from these; those of the same question are not taken.
        rng: of all chances.
        shown_share: chance that one is shown before a step that may have one.
        fitting_share: chance that it fits.
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
    """Return the trajectory as tokens: what its author wrote is trained; results and shown step traces are not.

    A step that a fitting step trace shows is not written again, unless it is the last one, which only the policy can write.
    What was shown to the author himself, a step text that begins with ``<retrieve>...</retrieve>``, is not trained either.

    Args:
        expert: texts of its steps.
        prompt_ids: ``[P]``.
        chat: writes what the policy would have written.
        shown: by the step that it stands before; see :func:`choose_shown`.

    Raises:
        RequestError: a step has no form of the policy's own.
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
    r"""Split off what was shown to a step's author, with the line before it, and what the author wrote.

    >>> split_shown("Use it.\n<retrieve>\n1 + 1\n</retrieve>\n<answer>2</answer>", ProtocolSettings())
    ('Use it.\n<retrieve>\n1 + 1\n</retrieve>\n', '<answer>2</answer>')
    """
    tag = re.escape(settings.retrieve_tag)
    found = re.match(rf"(?:[^\n]*\n)?<{tag}>\n.*?\n</{tag}>\n", step, flags=re.DOTALL)
    return ("", step) if found is None else (found[0], step[found.end() :])


def _trace_in(shown: str, settings: ProtocolSettings) -> str:
    tag = settings.retrieve_tag
    return shown.partition(f"<{tag}>\n")[2].removesuffix(f"\n</{tag}>\n")
