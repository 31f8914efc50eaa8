"""Questions to env runners and groups back: none is lost, none comes twice, whatever dies meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from rapo_rllib.rollout_metrics import SampleResult
from rapo_rllib.types import Question

logger = logging.getLogger(__name__)


def sample_questions(
    env_runner_group: Any,
    questions: Sequence[Question],
    *,
    restore: Callable[[], Any],
    recovery_timeout_s: float = 600.0,
    **sample_arguments: Any,
) -> SampleResult:
    """Roll out ``questions`` over all healthy env runners, again for those whose runner died.

    Args:
        env_runner_group: RLlib's group; its local runner is used if there are no remote ones.
        questions: a group each; the result has them in this order.
        restore: brings back restarted runners WITH the current weights.
        recovery_timeout_s: how long to wait when no runner is left.
        **sample_arguments: for ``RAPOEnvRunner.sample``.

    Raises:
        RuntimeError: no env runner came back in time.
    """
    if not env_runner_group.num_remote_env_runners():
        result: SampleResult = env_runner_group.local_env_runner.sample(questions=questions, **sample_arguments)
        return result
    missing, total = list(questions), SampleResult()
    while missing:
        runners = _living_runners(env_runner_group, restore, recovery_timeout_s)
        shares = [missing[start :: len(runners)] for start in range(len(runners))]
        busy = [(runner, share) for runner, share in zip(runners, shares, strict=True) if share]
        for part in env_runner_group.foreach_env_runner(
            ["sample"] * len(busy),
            kwargs=[{"questions": share, **sample_arguments} for _, share in busy],
            remote_worker_ids=[runner for runner, _ in busy],
            local_env_runner=False,
        ):
            total.extend(part)
        returned = {group.question.id for group in total.groups}
        missing = [question for question in questions if question.id not in returned]
        if missing:
            logger.warning("%d questions were lost with their env runner and are sampled again", len(missing))
    order = {question.id: index for index, question in enumerate(questions)}
    total.groups.sort(key=lambda group: order[group.question.id])
    return total


def _living_runners(env_runner_group: Any, restore: Callable[[], Any], timeout_s: float) -> list[int]:
    deadline = time.monotonic() + timeout_s
    restore()
    while not env_runner_group.healthy_worker_ids():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no env runner came back within {timeout_s:.0f} s; see the log of the env runner that died")
        time.sleep(1.0)
        restore()
    return list(env_runner_group.healthy_worker_ids())
