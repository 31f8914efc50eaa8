"""Agentic rollout, hybrid-policy and branching (algorithm.md sections 3, 10): questions in, groups of trajectories out.

One loop drives the engine; environments (tools) and retrieval run beside it on threads, and whatever comes back joins the
running batch. No trajectory waits for another one's generation, tool or retrieval; the histories that ask for a step trace
while a search is under way are searched together in the next one. (The ``lockstep`` schedule of the released code is there to
compare with: tools run when all steps are written, steps are written when all tools have answered.)
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from rapo_rllib.errors import EngineError, EnvError, RequestError, RetrievalError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.engine import Completion, Engine
from rapo_rllib.rollout.env_calls import EnvPool, called_tool, judge_env, reset_env, step_env
from rapo_rllib.rollout.group import GroupPlan, RolloutGroup, open_groups
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.session import EnvResult, Next, Session
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import Question, RetrievedTrace, TrajectoryGroup

logger = logging.getLogger(__name__)


class RolloutLoop:
    """Rolls out questions on one engine.

    Args:
        engine: generates steps.
        chat: turns text into tokens.
        envs: a pool of text environments, one per trajectory under way.
        settings: group size, hybrid policy, branching, budgets.
        retriever: answers histories with step traces; None: every trajectory is on-policy.
        seed: of all coins, and of what each request samples; None: another one every time, and requests share the engine's.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatProtocol,
        envs: EnvPool,
        settings: RolloutSettings,
        retriever: Retriever | None = None,
        seed: int | None = 0,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.envs = envs
        self.settings = settings
        self.retriever = retriever
        self._seed = random.SystemRandom().getrandbits(31) if seed is None else seed
        self._seeded = seed is not None
        self._lockstep = settings.rollout_schedule == "lockstep"
        self._threads = CallThreads(settings.tool_workers, "rapo-env")
        self._retrieval_thread = CallThreads(1, "rapo-retrieval")
        self._groups: dict[str, RolloutGroup] = {}  # of every session under way, by its name
        self._generating: dict[str, Session] = {}
        self._resets: dict[Future[str], Session] = {}
        self._steps: dict[Future[EnvResult], Session] = {}
        self._wanting: list[Session] = []
        self._search: tuple[Future[list[RetrievedTrace | None]], list[Session], float] | None = None
        self._written: list[Session] = []  # have a new step; kept here in lockstep only
        self._held: list[Session] = []  # could generate; kept here in lockstep only
        self._num_ended = 0
        self._temperature = settings.temperature
        self.stats = RolloutStats()

    def run(
        self,
        questions: Sequence[Question],
        *,
        retrieval_prob: float = 0.0,
        greedy: bool = False,
        group_size: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[TrajectoryGroup]:
        """Roll out every question; returns the groups in the order of the questions, and leaves ``stats``.

        Args:
            questions: what to roll out.
            retrieval_prob: chance that a hybrid trajectory retrieves after a completed step.
            greedy: temperature 0, no retrieval, no branches (evaluation).
            group_size: trajectories per question; None: ``G`` of the settings.
            on_progress: called with (ended, all) trajectories whenever one ends.

        Raises:
            EngineError: the engine broke; nothing of this run is usable, and nothing of it is left for the next one.
        """
        self.stats, self._num_ended, started = RolloutStats(), 0, time.monotonic()
        size = group_size or self.settings.group_size
        self._temperature = 0.0 if greedy else self.settings.temperature
        plan = GroupPlan(
            chat=self.chat,
            settings=self.settings,
            size=size,
            num_hybrid=0 if greedy or self.retriever is None else min(self.settings.num_hybrid, size),
            retrieval_prob=retrieval_prob,
            policy_version=self.engine.policy_version,
            seed=self._seed,
            branching=None if greedy else self.settings.branching,
        )
        groups = open_groups(questions, plan)
        try:
            self._run_groups(groups, on_progress)
        except BaseException:
            self._abandon()
            raise
        self.stats.seconds = time.monotonic() - started
        return [group.close(self.stats) for group in groups]

    def _run_groups(self, groups: Sequence[RolloutGroup], on_progress: Callable[[int, int], None] | None) -> None:
        for group in groups:
            self._begin(group, group.open())
        budget, reported = sum(group.plan.size for group in groups), 0
        while self._groups:
            self._tick()
            if on_progress is not None and self._num_ended > reported:
                reported = self._num_ended
                on_progress(reported, budget)

    def _begin(self, group: RolloutGroup, sessions: Sequence[Session]) -> None:
        for session in sessions:
            self._groups[session.name] = group
            self._resets[self._threads.submit(reset_env, self.envs, session)] = session

    def _abandon(self) -> None:
        """Forget all that is under way, so that the next run starts clean; environments that a call still uses are lost."""
        try:
            self.engine.abort(list(self._generating))
        except Exception as error:  # it may be what broke
            logger.warning("the engine could not abort %d requests: %r", len(self._generating), error)
        futures: list[Future[Any]] = [*self._resets, *self._steps]
        for future in futures:
            self._threads.abandon(future)
        searching: list[Session] = []
        if self._search is not None:
            self._retrieval_thread.abandon(self._search[0])
            searching, self._search = self._search[1], None
        for session in (*self._generating.values(), *self._wanting, *self._written, *self._held, *searching):
            self.envs.release(session)
        for table in (self._groups, self._generating, self._resets, self._steps, self._wanting, self._written, self._held):
            table.clear()  # type: ignore[attr-defined]

    def _tick(self) -> None:
        if self._generating:
            self._poll_engine()
        else:
            self._wait_for_threads()
        self._start_env_steps()
        self._collect_resets()
        self._collect_steps()
        self._end_overdue()
        self._collect_search()
        self._start_search()
        self._release_held()

    def _poll_engine(self) -> None:
        for completion in self.engine.poll():
            session = self._generating.pop(completion.request_id)
            if completion.policy_version != session.trajectory.policy_version:
                raise EngineError(f"{session.name}: weights changed from under a running trajectory")
            self.stats.cached_tokens += completion.cached_tokens
            self._fork(session, completion)
            session.take_completion(completion)
            self._written.append(session)

    def _fork(self, session: Session, completion: Completion) -> None:
        """Let branches go their own way from before the step that ``completion`` is about to add."""
        group = self._groups[session.name]
        for forked in group.fork(session, completion):
            self._groups[forked.name] = group
            self._advance(forked, Next.GENERATE)

    def _wait_for_threads(self) -> None:
        started = time.monotonic()
        pending: set[Future[Any]] = {*self._resets, *self._steps}
        if self._search is not None:
            pending.add(self._search[0])
        if pending:
            wait(pending, timeout=0.25, return_when=FIRST_COMPLETED)
        self.stats.idle_s += time.monotonic() - started

    def _start_env_steps(self) -> None:
        if self._lockstep and self._generating:
            return
        for session in self._written:
            self._steps[self._threads.submit(step_env, session)] = session
        self._written.clear()

    def _collect_resets(self) -> None:
        for future in [f for f in self._resets if f.done()]:
            session = self._resets.pop(future)
            try:
                session.take_question(future.result())
            except EnvError as error:
                self._fail(session, error)
            else:
                self._advance(session, session.start())

    def _collect_steps(self) -> None:
        for future in [f for f in self._steps if f.done()]:
            session = self._steps.pop(future)
            try:
                self._advance(session, session.take_env_result(future.result()))
            except EnvError as error:
                self._fail(session, error)

    def _end_overdue(self) -> None:
        """A call that does not return in time costs its trajectory, and its thread is replaced."""
        limit = self.settings.step_timeout_s
        tables: dict[str, Any] = {"reset": self._resets, "step": self._steps}
        for name, calls in tables.items():
            for future, session in list(calls.items()):
                started = session.env_started
                if started is not None and (age := time.monotonic() - started) > limit and not future.done():
                    del calls[future]
                    self._threads.abandon(future)
                    session.env = None  # still in use by a thread that may never return
                    name = "truncate" if session.cut else name
                    self._fail(session, EnvError(f"env.{name} has not returned after {age:.1f} s (step_timeout_s = {limit})"))

    def _start_search(self) -> None:
        if self._wanting and self._search is None:
            assert self.retriever is not None
            sessions, self._wanting = self._wanting, []
            self.stats.retrieval_queries += len(sessions)
            future = self._retrieval_thread.submit(self.retriever, [session.query() for session in sessions])
            self._search = (future, sessions, time.monotonic())

    def _collect_search(self) -> None:
        if self._search is None or not self._search[0].done():
            return
        future, sessions, started = self._search
        self._search = None
        self.stats.retrieval_s += time.monotonic() - started
        try:
            found = future.result()
        except RetrievalError:  # the retriever has said so
            self.stats.retrieval_failures += len(sessions)
            for session in sessions:
                session.trajectory.failed_retrievals += 1
            found = [None] * len(sessions)
        else:
            self.stats.retrieval_empty += sum(hit is None for hit in found)
        for session, hit in zip(sessions, found, strict=True):
            self._advance(session, session.on_retrieval_miss() if hit is None else session.take_retrieved(hit))

    def _release_held(self) -> None:
        """In lockstep: everybody has their tool results and step traces, so all generate."""
        busy = self._generating or self._resets or self._steps or self._wanting or self._search
        if self._held and not busy:
            held, self._held = self._held, []
            for session in held:
                self._submit(session)

    def _advance(self, session: Session, what: Next) -> None:
        if what is Next.RETRIEVE:
            self._wanting.append(session)
        elif what is Next.END:
            self._num_ended += 1
            self.envs.release(session)
            group = self._groups.pop(session.name)
            self._begin(group, group.refill())
        elif what is Next.JUDGE:
            self._steps[self._threads.submit(judge_env, session)] = session
        elif self._lockstep:
            self._held.append(session)
        else:
            self._submit(session)

    def _submit(self, session: Session) -> None:
        request = session.request(self._temperature, self._seeded)
        try:
            self.engine.submit(request)
        except RequestError as error:
            self._fail(session, error)
        else:
            self.stats.requested_tokens += len(request.token_ids)
            self._generating[request.request_id] = session

    def _fail(self, session: Session, error: Exception) -> None:
        step, age = max(len(session.trajectory.steps) - 1, 0), time.monotonic() - session.started
        details = (session.question.id, session.name, step, called_tool(session), age, error)
        logger.warning("question %s, trajectory %s, step %d, tool %s, %.1f s old: %s", *details)
        self._advance(session, session.end("error", str(error)))

    def close(self) -> None:
        """Stop the threads; one that hangs in a tool is left behind."""
        self._threads.shutdown()
        self._retrieval_thread.shutdown()
        self.envs.close()
