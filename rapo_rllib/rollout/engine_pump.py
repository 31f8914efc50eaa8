"""An engine as coroutines have it: each awaits its own step, one loop polls for all."""

from __future__ import annotations

import logging
from concurrent.futures import Future

from rapo_rllib.errors import EngineError
from rapo_rllib.rollout.coroutines import result_of
from rapo_rllib.rollout.engine import Completion, Engine, GenerationRequest
from rapo_rllib.rollout.stats import RolloutStats

logger = logging.getLogger(__name__)


class Barrier:
    """Where all wait for the slowest, in the ``lockstep`` schedule; in any other (``closed=False``) nobody ever does."""

    def __init__(self, closed: bool) -> None:
        self._closed = closed
        self._arrived: list[Future[None]] = []

    async def wait(self) -> None:
        """Go on when all are here."""
        if self._closed:
            self._arrived.append(Future())
            await result_of(self._arrived[-1])

    def open_for(self, expected: int) -> None:
        """Let them go on if so many are here."""
        if len(self._arrived) == expected:
            arrived, self._arrived = self._arrived, []
            for future in arrived:
                future.set_result(None)


class EnginePump:
    """Generates for many coroutines.

    Args:
        engine: writes steps.
        barrier: stands before each generation and behind it: all write, then the tools of all run.
        stats: counts tokens.
    """

    def __init__(self, engine: Engine, barrier: Barrier, stats: RolloutStats) -> None:
        self._engine, self._barrier, self._stats = engine, barrier, stats
        self._version = engine.policy_version
        self._running: dict[str, Future[Completion]] = {}

    async def generate(self, request: GenerationRequest) -> Completion:
        """Generate one step of the policy. ``RequestError`` if the engine refuses the request."""
        await self._barrier.wait()
        self._engine.submit(request)
        self._stats.requested_tokens += len(request.token_ids)
        self._running[request.request_id] = answer = Future[Completion]()
        completion = await result_of(answer)
        self._stats.cached_tokens += completion.cached_tokens
        await self._barrier.wait()
        return completion

    def poll(self) -> bool:
        """Advance the engine by one of its steps and hand out what has finished; False: it has nothing to do."""
        if not self._running:
            return False
        for completion in self._engine.poll():
            if completion.policy_version != self._version:
                raise EngineError(f"{completion.request_id}: weights changed from under a running trajectory")
            self._running.pop(completion.request_id).set_result(completion)
        return True

    def abort(self) -> None:
        """Forget all that is being generated."""
        try:
            self._engine.abort(list(self._running))
        except Exception as error:  # it may be what broke
            logger.warning("the engine could not abort %d requests: %r", len(self._running), error)
