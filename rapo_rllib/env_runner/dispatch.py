"""Send questions to env runners and collect the groups: one group per question, even if env runners die meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.types import Question, TrajectoryGroup

logger = logging.getLogger(__name__)

_MAX_FRUITLESS_ROUNDS = 3


def sample_questions(
    env_runner_group: Any,
    questions: Sequence[Question],
    *,
    restore: Callable[[], Any],
    recovery_timeout_s: float = 600.0,
    timeout_s: float | None = None,
    **sample_arguments: Any,
) -> SampleResult:
    """Roll out ``questions`` on all healthy env runners; questions whose env runner died are rolled out again.

    Args:
        env_runner_group: RLlib's group; its local runner is used if there are no remote ones.
        questions: the result has a group for each, in this order. One may occur twice, as two epochs can meet in a batch.
        restore: brings back restarted runners WITH the current weights.
        recovery_timeout_s: how long to wait when no runner is left.
        timeout_s: how long remote env runners may take (``sample_timeout_s``); None: no limit.
        **sample_arguments: for ``RAPOEnvRunner.sample``.

    Raises:
        RuntimeError: no env runner came back in time; or in three rounds in a row every env runner died; or an env runner is
            alive and has not answered in ``timeout_s``.
    """
    if not env_runner_group.num_remote_env_runners():
        result: SampleResult = env_runner_group.local_env_runner.sample(questions=questions, **sample_arguments)
        return result
    missing, total, fruitless = list(questions), SampleResult(), 0
    found: list[TrajectoryGroup | None] = []
    while missing:
        if fruitless == _MAX_FRUITLESS_ROUNDS:
            raise RuntimeError(
                f"env runners died {fruitless} times in a row while sampling {len(missing)} questions ({missing[0].id}, ...); "
                "see the log of an env runner that died"
            )
        runners = _living_runners(env_runner_group, restore, recovery_timeout_s)
        shares = [missing[start :: len(runners)] for start in range(len(runners))]
        busy = [(runner, share) for runner, share in zip(runners, shares, strict=True) if share]
        parts = env_runner_group.foreach_env_runner(
            ["sample"] * len(busy),
            kwargs=[{"questions": share, **sample_arguments} for _, share in busy],
            remote_worker_ids=[runner for runner, _ in busy],
            local_env_runner=False,
            timeout_seconds=timeout_s,
        )
        _check_answered(env_runner_group, [runner for runner, _ in busy], len(parts), timeout_s)
        for part in parts:
            total.extend(part)
        fruitless = 0 if parts else fruitless + 1
        found = _in_order(total.groups, questions)
        missing = [question for question, group in zip(questions, found, strict=True) if group is None]
        if missing:
            logger.warning("%d questions were lost with their env runner and are sampled again", len(missing))
    total.groups = [group for group in found if group is not None]
    return total


def _check_answered(env_runner_group: Any, asked: Sequence[int], answers: int, timeout_s: float | None) -> None:
    """Raise if env runners are alive and have not answered: asking them again would only lengthen their queue."""
    living = set(env_runner_group.healthy_worker_ids())
    late = sum(runner in living for runner in asked) - answers
    if timeout_s is not None and late > 0:
        raise RuntimeError(
            f"{late} env runner(s) of {sorted(asked)} did not answer in {timeout_s:g} s: raise sample_timeout_s (in evaluation "
            "evaluation_sample_timeout_s), lower step_timeout_s or max_response_tokens, or see their logs"
        )


def _in_order(groups: Sequence[TrajectoryGroup], questions: Sequence[Question]) -> list[TrajectoryGroup | None]:
    """Find the group of each question, None if it has not come back; a question that occurs twice needs two groups."""
    returned: dict[str, list[TrajectoryGroup]] = {}
    for group in reversed(groups):
        returned.setdefault(group.question.id, []).append(group)
    return [returned[question.id].pop() if returned.get(question.id) else None for question in questions]


def _living_runners(env_runner_group: Any, restore: Callable[[], Any], timeout_s: float) -> list[int]:
    deadline = time.monotonic() + timeout_s
    restore()
    while not env_runner_group.healthy_worker_ids():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no env runner came back within {timeout_s:.0f} s; see the log of the env runner that died")
        time.sleep(1.0)
        restore()
    return list(env_runner_group.healthy_worker_ids())
