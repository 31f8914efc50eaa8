"""Generation for coroutines: each coroutine awaits its own step, and one loop polls the engine for all."""

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
    """The steps that many coroutines await from one engine.

    Args:
        engine: generates steps.
        stats: counts tokens.
        finished: finished requests by id, until the pump that asked takes them; shared by all pumps of the engine.
        one_version: the weights must not change during the life of this pump.
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
        """Advance the engine by one engine step and hand out finished requests; False: no request of this pump is running."""
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
        """Abort the requests of ``group``: its trajectories get a ``GivenUpError``, now or when they ask for a next step."""
        group.given_up = True
        self.forget([name for name, (_, of) in self._running.items() if of is group])

    def forget(self, names: Iterable[str]) -> None:
        """Abort these requests; the coroutines that await them get a ``GivenUpError``."""
        names = [name for name in names if name in self._running]
        if names:
            self._engine.abort(names)
        for name in names:
            self._finished.pop(name, None)
            self._running.pop(name)[0].set_exception(GivenUpError(f"{name} was given up"))

    def abort(self) -> None:
        """Abort all running requests, without an answer to the coroutines that await them."""
        names, self._running = list(self._running), {}
        for name in names:  # a later pump may ask by the same name
            self._finished.pop(name, None)
        try:
            self._engine.abort(names)
        except Exception as error:  # the engine may be what broke
            logger.warning("the engine could not abort %d requests: %r", len(names), error)
