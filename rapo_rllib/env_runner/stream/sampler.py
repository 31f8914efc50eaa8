"""The driver's side of a streamed rollout: a thread keeps all engines at work, and ``take`` waits for the groups of an update.

    ledger --questions--> engines --groups--> ledger --take--> update, while the engines go on
    new weights: each engine loads them between two orders; then ``set_version`` tells the ledger

An order lasts a quarter of a second at most, so weights, evaluations and the end of the training wait no longer than that.
An engine that died or was restarted has lost its groups under way: their questions are asked again, and the engine gets no
question before it has the current weights.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import ray

from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.env_runner.stream.ledger import QuestionLedger, shares
from rapo_rllib.env_runner.stream.runner import Answer, Conditions, Order
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.types import TrajectoryGroup

logger = logging.getLogger(__name__)

_LOOK_S = 0.25  # seconds between two checks, and the length of an order
_MAX_FRUITLESS = 3  # times that each engine may die while no group comes back
_RESTORE_EVERY_S = 1.0


@dataclass
class Engine:
    """An engine that takes orders."""

    name: str = ""  # of its process; "" before its first answer
    requests: int = 0  # at its last answer, with requests given to it since
    view: Any = None  # the view of the buffer that it was sent last


@dataclass(frozen=True)
class Call:
    """An order that was not answered yet."""

    runner: int
    order: Order
    begun: float


def work(env_runner: Any, order: Order) -> Answer:
    """Execute an order on an env runner; an exception ends the process of the env runner, and RLlib restarts it."""
    answer: Answer = env_runner.stream(order)
    return answer


class StreamSampler:
    """Sampler that keeps the env runners of a training busy.

    Args:
        env_runner_group: RLlib's group; its remote env runners are used.
        ledger: knows where each question is.
        capacity: requests that an engine computes side by side.
        group_size: trajectories of a group.
        restore: brings back restarted env runners WITH the current weights.
        timeout_s: how long an engine may take for an answer while groups are awaited.
        recovery_timeout_s: how long to wait when no env runner is left.
    """

    def __init__(
        self,
        env_runner_group: Any,
        ledger: QuestionLedger,
        capacity: int,
        group_size: int,
        restore: Callable[[], Any],
        timeout_s: float,
        recovery_timeout_s: float = 600.0,
    ) -> None:
        self._group, self._ledger = env_runner_group, ledger
        self._capacity, self._group_size = capacity, group_size
        self._restore, self._timeout_s, self._recovery_timeout_s = restore, timeout_s, recovery_timeout_s
        self._changed = threading.Condition()  # its lock guards the attributes below
        self._conditions: Conditions | None = None  # None: nothing is to be sampled
        self._engines: dict[int, Engine] = {}  # that take orders, by number of the env runner
        self._calls: dict[Any, Call] = {}
        self._given_up: dict[int, list[int]] = {}  # places that engines are still to be told
        self._stats: dict[int, RolloutStats] = {}
        self._logged: list[Any] = []
        self._error: BaseException | None = None
        self._num_failures = 0  # of engines, since a group came back
        self._num_lost = 0  # engines, since the last batch
        self._alone_since: float | None = None  # since then no engine has taken orders
        self._out_s: dict[int, float] = {}  # seconds without an engine that takes no orders, while groups are awaited
        self._looked = 0.0
        self._restoring: Future[Any] | None = None
        self._restored_at = 0.0
        self._restorer = ThreadPoolExecutor(1, thread_name_prefix="restoring-env-runners")
        self._thread: threading.Thread | None = None
        self._closing = False

    def take(
        self,
        conditions: Conditions,
        prepare: Callable[[TrajectoryGroup], TrajectoryGroup] = lambda group: group,
        accepts: Callable[[TrajectoryGroup], bool] = lambda group: True,
    ) -> SampleResult:
        """Wait for the groups of an update.

        Args:
            conditions: of the groups that begin from now on.
            prepare: completes each group, e.g. with off-policy trajectories.
            accepts: whether a group is to be trained on; a refused group is replaced by another one.

        Raises:
            RuntimeError: no env runner came back in time, env runners die again and again, or a live one does not answer.
        """
        started = time.monotonic()
        with self._changed:
            self._begin(conditions)
            while True:
                if self._error is not None:
                    raise self._error
                self._ledger.judge(prepare, accepts)
                if self._ledger.enough:
                    return self._batch()
                self._check_answers(started)
                self._changed.wait(_LOOK_S)

    def _begin(self, conditions: Conditions) -> None:
        self._conditions = conditions
        if self._thread is None:
            self._engines = {runner: Engine() for runner in self._group.healthy_worker_ids()}
            self._looked = time.monotonic()
            self._thread = threading.Thread(target=self._serve, name="rollout-stream", daemon=True)
            self._thread.start()

    def _batch(self) -> SampleResult:
        """Build the result of ``take``, and reset the counts."""
        ledger = self._ledger
        batch = ledger.take()
        kept, rejected = [found.group for found in batch], ledger.rejected
        groups = kept or rejected[: ledger.batch_size]  # rejected ones only for their metrics
        probs = [found.retrieval_prob for found in batch]
        result = SampleResult(
            groups,
            list(self._stats.values()),
            self._logged,
            retrieval_prob=sum(probs) / len(probs) if probs else 0.0,
            groups_dropped=len(rejected),
            left_out=rejected if kept else rejected[len(groups) :],
            groups_stale=ledger.num_stale,
            questions_again=ledger.num_again,
            env_runners_lost=self._num_lost,
            groups_under_way=len(ledger.out),
        )
        ledger.begin_batch()
        self._stats, self._logged, self._num_lost = {}, [], 0
        if not ledger.max_staleness:
            self._conditions = None  # nothing begins before the next ``take``, which has the new values of schedules
        return result

    def set_version(self, version: int) -> None:
        """Note that all engines hold this version of the weights now."""
        with self._changed:
            if version != self._ledger.version:
                for runner, places in self._ledger.set_version(version).items():
                    self._given_up.setdefault(runner, []).extend(places)

    def end_update(self) -> None:
        """Note that the update is over, even if it has not changed the weights."""
        with self._changed:
            self._ledger.updating = False

    def cursor_state(self, cursor: QuestionCursor) -> dict[str, Any]:
        """Return the state of the ledger's cursor; questions handed out and not trained on are asked again from it."""
        with self._changed:  # over both: a question that is handed out in between would be in neither
            return cursor.get_state(self._ledger.untrained)

    def forget(self) -> None:
        """Drop all groups under way or complete, as weights or cursor are replaced; the next ``take`` begins with none."""
        with self._changed:
            self._conditions = None
            while self._calls and self._error is None:
                self._changed.wait(_LOOK_S)
            for runner in self._engines:
                self._given_up[runner] = [place for place, out in self._ledger.out.items() if out.runner == runner]
            self._ledger.forget()
            self._stats, self._logged, self._num_lost = {}, [], 0

    def close(self) -> None:
        """Stop the thread; groups under way stay in the env runners."""
        with self._changed:
            self._closing = True
        if self._thread is not None:
            self._thread.join()
        self._restorer.shutdown(wait=False, cancel_futures=True)

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._give_orders()
                self._collect()
                self._bring_back()
        except BaseException as error:  # ``take`` raises it, on its own thread
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _give_orders(self) -> None:
        actors = self._group._worker_manager.actors()  # RLlib has no other way to them
        with self._changed:
            for runner, order in self._orders().items():
                call = actors[runner].apply.remote(work, order=order)
                self._calls[call] = Call(runner, order, time.monotonic())

    def _orders(self) -> dict[int, Order]:
        """Make an order for each idle engine that has something to do."""
        if self._conditions is None:
            return {}
        busy, orders = {call.runner for call in self._calls.values()}, {}
        loads = {runner: engine.requests for runner, engine in self._engines.items()}
        for runner, count in shares(self._ledger.room, loads, self._capacity, self._group_size).items():
            if runner in busy:
                continue  # the engine gets questions after its answer
            engine, conditions = self._engines[runner], self._conditions
            questions = self._ledger.hand_out(runner, count, conditions.retrieval_prob)
            given_up = self._given_up.pop(runner, [])
            if questions or given_up or self._ledger.load(runner):
                engine.requests += len(questions) * self._group_size
                if engine.view is conditions.buffer_view:
                    conditions = replace(conditions, buffer_view=None)
                else:
                    engine.view = conditions.buffer_view
                orders[runner] = Order(conditions, questions, given_up, self._ledger.version, _LOOK_S)
        return orders

    def _collect(self) -> None:
        """Wait a moment for answers, and take in those that have come."""
        if not self._calls:
            with self._changed:
                self._changed.wait(_LOOK_S / 10)
            return
        ray.wait(list(self._calls), num_returns=1, timeout=_LOOK_S)
        done, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        for reference in done:
            answer: Answer | Exception
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayError as error:
                answer = error
            with self._changed:
                self._take_answer(self._calls.pop(reference), answer)
                self._changed.notify_all()

    def _take_answer(self, call: Call, answer: Answer | Exception) -> None:
        engine = self._engines.get(call.runner)
        if engine is None:
            return
        if isinstance(answer, Exception):
            self._fail(call.runner, f"{type(answer).__name__}")
            return
        if answer.version < call.order.least_version:
            self._fail(call.runner, "it was started anew")
            return
        if engine.name != answer.engine:  # it may have been restarted, and given the current weights
            self._num_lost += engine.name != ""
            engine.name, engine.view = answer.engine, None
        engine.requests = answer.num_requests
        for place, group in answer.complete:
            self._num_failures = 0
            self._ledger.came_back(place, group)
        self._ledger.lost(call.runner, kept=answer.under_way)
        self._stats.setdefault(call.runner, RolloutStats()).add_stats(answer.stats)
        self._logged += answer.logged

    def _fail(self, runner: int, why: str) -> None:
        """Remove an engine that is gone, and ask its questions again."""
        del self._engines[runner]
        self._given_up.pop(runner, None)
        self._group._worker_manager.set_actor_state(runner, healthy=False)
        self._num_failures += 1
        self._num_lost += 1
        count = self._ledger.lost(runner)
        logger.warning("env runner %d was lost (%s); its %d questions are asked again", runner, why, count)
        if self._num_failures > _MAX_FRUITLESS * self._group.num_remote_env_runners():
            raise RuntimeError(
                f"env runners died {self._num_failures} times in a row while sampling, and no group came back; see the log of "
                "an env runner that died"
            )

    def _bring_back(self) -> None:
        """Restore lost engines on another thread, since their weights may have to wait for the end of an update."""
        if self._restoring is not None:
            if self._restoring.done():
                self._restoring.result()
                self._restoring, self._restored_at = None, time.monotonic()
                with self._changed:
                    for runner in self._group.healthy_worker_ids():
                        self._engines.setdefault(runner, Engine())
        elif (
            len(self._engines) < self._group.num_remote_env_runners()
            and time.monotonic() - self._restored_at > _RESTORE_EVERY_S
        ):
            self._restoring = self._restorer.submit(self._restore)
        self._check_out()
        self._check_alone()

    def _check_out(self) -> None:
        """Warn of engines that are out for ``recovery_timeout_s``, and count them (if none is left: :meth:`_check_alone`).

        Only time in which groups are awaited counts: during an update, engines wait for weights, and weights for its end.
        """
        since, self._looked = self._looked, time.monotonic()
        out = set(self._group._worker_manager.actors()) - set(self._engines)
        self._out_s = {runner: self._out_s.get(runner, 0.0) for runner in sorted(out)}
        if self._conditions is None or self._ledger.updating:
            return
        for runner, before in list(self._out_s.items()):
            self._out_s[runner] += self._looked - since
            if before <= self._recovery_timeout_s < self._out_s[runner]:
                logger.warning("env runner %d has not come back within %.0f s", runner, self._recovery_timeout_s)
                with self._changed:  # added to another engine's counts: counts of its own would lower the mean idle time
                    of = next(iter(self._stats), runner)
                    self._stats.setdefault(of, RolloutStats()).deadlines["restore"] += 1

    def _check_alone(self) -> None:
        if self._engines or self._conditions is None:
            self._alone_since = None
            return
        self._alone_since = self._alone_since or time.monotonic()
        if time.monotonic() - self._alone_since > self._recovery_timeout_s:
            raise RuntimeError(
                f"no env runner came back within {self._recovery_timeout_s:.0f} s; see the log of the env runner that died"
            )

    def _check_answers(self, waiting_since: float) -> None:
        """Raise if an engine is silent for ``timeout_s``, without time before ``waiting_since`` (evaluation, new weights)."""
        for call in self._calls.values():
            if time.monotonic() - max(call.begun, waiting_since) > self._timeout_s:
                raise RuntimeError(
                    f"env runner {call.runner} did not answer in {self._timeout_s:g} s: raise sample_timeout_s, lower "
                    "step_timeout_s or max_response_tokens, or see its log"
                )
