"""Hybrid-policy agentic rollout (ALGORITHM section 3, algorithm 1): questions in, groups of trajectories out.

One loop drives the engine; environments (tools) and retrieval run beside it on threads, and whatever comes back joins the
running batch. No trajectory waits for another one's generation, tool or retrieval; the histories that ask for a step trace
while a search is under way are searched together in the next one.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from rapo_rllib.errors import EngineError, EnvError, RetrievalError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.engine import Engine
from rapo_rllib.rollout.env_calls import EnvPool, reset_env, step_env
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.session import EnvResult, Next, Session
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import Question, RetrievedTrace, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)


class RolloutLoop:
    """Rolls out questions on one engine.

    Args:
        engine: generates steps.
        chat: turns text into tokens.
        envs: a pool of text environments, one per trajectory under way.
        settings: group size, hybrid policy, budgets.
        retriever: answers histories with step traces; None: every trajectory is on-policy.
        seed: of the coins that decide about retrieval.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatProtocol,
        envs: EnvPool,
        settings: RolloutSettings,
        retriever: Retriever | None = None,
        seed: int = 0,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.envs = envs
        self.settings = settings
        self.retriever = retriever
        self._seed = seed
        self._threads = ThreadPoolExecutor(settings.tool_workers, thread_name_prefix="rapo-env")
        self._retrieval_thread = ThreadPoolExecutor(1, thread_name_prefix="rapo-retrieval")
        self._generating: dict[str, Session] = {}
        self._resets: dict[Future[str], Session] = {}
        self._steps: dict[Future[EnvResult], Session] = {}
        self._wanting: list[Session] = []
        self._search: tuple[Future[list[RetrievedTrace | None]], list[Session], float] | None = None
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
            greedy: temperature 0, no retrieval (evaluation).
            group_size: trajectories per question; None: ``G`` of the settings.
            on_progress: called with (ended, all) trajectories whenever one ends.

        Raises:
            EngineError: the engine broke; nothing of this run is usable.
        """
        self.stats = RolloutStats()
        self._temperature = 0.0 if greedy else self.settings.temperature
        started = time.monotonic()
        hybrid = 0 if greedy or self.retriever is None else self.settings.num_hybrid
        groups = [self._open_group(q, group_size or self.settings.group_size, hybrid, retrieval_prob) for q in questions]
        sessions = [session for group in groups for session in group]
        ended = 0
        for session in sessions:
            self._resets[self._threads.submit(reset_env, self.envs, session)] = session
        while self._busy():
            self._tick()
            now_ended = sum(1 for session in sessions if session.trajectory.end)
            if on_progress is not None and now_ended > ended:
                on_progress(now_ended, len(sessions))
            ended = now_ended
        self.stats.seconds = time.monotonic() - started
        return [self._close_group(question, group) for question, group in zip(questions, groups, strict=True)]

    def _open_group(self, question: Question, group_size: int, num_hybrid: int, retrieval_prob: float) -> list[Session]:
        version = self.engine.policy_version
        sessions = []
        for index in range(group_size):
            # the last N_hybrid of the group; the coin depends on the trajectory alone, not on timing
            hybrid = index >= group_size - num_hybrid
            rng = random.Random(f"{self._seed}/{version}/{question.id}/{index}")
            trajectory = Trajectory(question.id, (), hybrid=hybrid, policy_version=version)
            name = f"{version}/{question.id}/{index}"
            sessions.append(Session(name, question, trajectory, self.chat, self.settings, retrieval_prob, rng))
        return sessions

    def _close_group(self, question: Question, sessions: list[Session]) -> TrajectoryGroup:
        for session in sessions:
            trajectory = session.trajectory
            self.stats.ends[trajectory.end] += 1
            self.stats.prompt_tokens += len(trajectory.prompt_ids)
            self.stats.retrieval_skipped += session.retrieval_skipped
            for step in trajectory.steps:
                if step.tool is not None:
                    self.stats.tool_calls[step.tool] += 1
                    self.stats.tool_s += step.tool_seconds
                if step.tool is not None and step.tool_error:
                    self.stats.tool_failures[f"{step.tool}/{step.tool_error}"] += 1
        return TrajectoryGroup(question, [s.trajectory for s in sessions], self.engine.policy_version)

    def _busy(self) -> bool:
        return bool(self._generating or self._resets or self._steps or self._wanting or self._search)

    def _tick(self) -> None:
        if self._generating:
            for completion in self.engine.poll():
                session = self._generating.pop(completion.request_id)
                if completion.policy_version != session.trajectory.policy_version:
                    raise EngineError(f"{session.name}: weights changed from under a running trajectory")
                session.take_completion(completion)
                self._steps[self._threads.submit(step_env, session)] = session
        else:
            self._wait_for_threads()
        self._collect_resets()
        self._collect_steps()
        self._collect_search()
        self._start_search()

    def _wait_for_threads(self) -> None:
        started = time.monotonic()
        pending: set[Future[Any]] = {*self._resets, *self._steps}
        if self._search is not None:
            pending.add(self._search[0])
        if pending:
            wait(pending, timeout=0.25, return_when=FIRST_COMPLETED)
        self.stats.idle_s += time.monotonic() - started

    def _collect_resets(self) -> None:
        for future in [f for f in self._resets if f.done()]:
            session = self._resets.pop(future)
            try:
                session.question_text = future.result()
                session.trajectory.prompt_ids = self.chat.prompt_ids(session.question_text)
                self._check_prompt(session)
            except EnvError as error:
                self._fail(session, error)
            else:
                self._follow(session, Next.GENERATE)

    def _check_prompt(self, session: Session) -> None:
        length = len(session.trajectory.prompt_ids)
        if length > self.settings.max_prompt_tokens:
            raise EnvError(f"prompt of {length} tokens is over max_prompt_tokens = {self.settings.max_prompt_tokens}")

    def _collect_steps(self) -> None:
        for future in [f for f in self._steps if f.done()]:
            session = self._steps.pop(future)
            try:
                self._follow(session, session.take_env_result(future.result()))
            except EnvError as error:
                self._fail(session, error)
        now = time.monotonic()
        for future, session in list(self._steps.items()):
            if session.env_started is not None and now - session.env_started > self.settings.step_timeout_s:
                del self._steps[future]
                session.env = None  # still in use by a thread that may never return
                self._fail(session, EnvError(f"env step did not return within {self.settings.step_timeout_s} s"))

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
        except RetrievalError as error:
            logger.warning("retrieval failed for %d trajectories, which go on without: %s", len(sessions), error)
            self.stats.retrieval_failures += len(sessions)
            found = [None] * len(sessions)
        else:
            self.stats.retrieval_empty += sum(hit is None for hit in found)
        for session, hit in zip(sessions, found, strict=True):
            self._follow(session, Next.GENERATE if hit is None else session.take_retrieved(hit))

    def _follow(self, session: Session, what: Next) -> None:
        if what is Next.RETRIEVE:
            self._wanting.append(session)
        elif what is Next.END:
            self.envs.give_back(session)
        elif session.room <= 0:
            self._follow(session, session.end("length"))
        else:
            request = session.request(self._temperature)
            self._generating[request.request_id] = session
            self.engine.submit(request)

    def _fail(self, session: Session, error: Exception) -> None:
        last = session.trajectory.steps[-1].tool if session.trajectory.steps else None
        logger.warning("%s: step %d, tool %s: %s", session.name, len(session.trajectory.steps), last, error)
        self._follow(session, session.end("error", str(error)))

    def close(self) -> None:
        """Stop the threads; one that hangs in a tool is left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._retrieval_thread.shutdown(wait=False, cancel_futures=True)
        self.envs.close()
