"""An engine as coroutines have it: each awaits its own step, one loop polls for all."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future

from rapo_rllib.errors import EngineError, GivenUpError
from rapo_rllib.rollout.coroutines import result_of
from rapo_rllib.rollout.engine import Completion, Engine, Failure, GenerationRequest
from rapo_rllib.rollout.group import RolloutGroup
from rapo_rllib.rollout.stats import RolloutStats

logger = logging.getLogger(__name__)


class EnginePump:
    """Generates for many coroutines.

    Args:
        engine: writes steps.
        stats: counts tokens.
        finished: completions by request that another run of the same engine has asked for; shared by all its pumps.
        one_version: weights must not change while it generates.
    """

    def __init__(
        self, engine: Engine, stats: RolloutStats, finished: dict[str, Completion | Failure], one_version: bool = True
    ) -> None:
        self._engine, self._stats, self._finished = engine, stats, finished
        self._version = engine.policy_version if one_version else None
        self._running: dict[str, tuple[Future[Completion], RolloutGroup]] = {}

    async def generate(self, request: GenerationRequest, group: RolloutGroup) -> Completion:
        """Generate one step for a trajectory of ``group``.

        Raises:
            RequestError: the engine refuses the request, or cannot serve it.
            GivenUpError: the group was given up.
        """
        if group.given_up:
            raise GivenUpError(f"{request.request_id} was given up")
        self._engine.submit(request)
        self._stats.requested_tokens += len(request.token_ids)
        answer = Future[Completion]()
        self._running[request.request_id] = (answer, group)
        completion = await result_of(answer)
        self._stats.cached_tokens += completion.cached_tokens
        return completion

    def poll(self) -> bool:
        """Advance the engine by one of its steps and hand out what has finished; False: it has nothing to do."""
        if not self._running:
            return False
        self._finished.update((ended.request_id, ended) for ended in self._engine.poll())
        for name in [name for name in self._finished if name in self._running]:
            ended = self._finished.pop(name)
            if isinstance(ended, Failure):
                self._running.pop(name)[0].set_exception(ended.error)
            elif self._version in (None, ended.policy_version):
                self._running.pop(name)[0].set_result(ended)
            else:
                raise EngineError(f"{name}: weights changed from under a running trajectory")
        return True

    def give_up(self, group: RolloutGroup) -> None:
        """Forget what is being generated for ``group``, whose trajectories are told so, at their next step if not now."""
        group.given_up = True
        self.forget([name for name, (_, of) in self._running.items() if of is group])

    def forget(self, names: Iterable[str]) -> None:
        """Abort these requests; their waiters are told so."""
        names = [name for name in names if name in self._running]
        if names:
            self._engine.abort(names)
        for name in names:
            self._finished.pop(name, None)
            self._running.pop(name)[0].set_exception(GivenUpError(f"{name} was given up"))

    def abort(self) -> None:
        """Forget all that is being generated."""
        names, self._running = list(self._running), {}
        try:
            self._engine.abort(names)
        except Exception as error:  # it may be what broke
            logger.warning("the engine could not abort %d requests: %r", len(names), error)
