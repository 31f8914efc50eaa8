"""One batch of groups for a training step. Flow: ``algorithm/algorithm.py`` -> here -> ``dispatch.py`` -> env runners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rapo_rllib.batching.credit import group_has_signal
from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.envs.cursor import QuestionOrder
from rapo_rllib.settings import ObjectiveSettings, UpdateSettings
from rapo_rllib.types import Question

RollOut = Callable[[list[Question]], SampleResult]
MAX_SAMPLING_ROUNDS = 4  # of dynamic sampling: where hardly a group has signal, a step is to end all the same


def sample_batch(
    roll_out: RollOut, cursor: QuestionOrder, settings: UpdateSettings, objective: ObjectiveSettings
) -> SampleResult:
    """Roll out the next questions; with dynamic sampling (DAPO), groups without signal are replaced by others.

    Where no group of any round has signal, the first round is returned, for its metrics. What is not trained on is in
    ``left_out``: it used the buffer, and the policy may learn from its good steps.
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


def _next(cursor: QuestionOrder, count: int) -> list[Question]:
    return [question for _, question in cursor.take_places(count)]
