"""Agentic rollout, hybrid-policy and branching (algorithm.md sections 3, 10): questions in, groups of trajectories out.

Each trajectory is a coroutine, ``Run.roll_out``. It waits for the engine, which one loop polls for all; for its environment
(tools), which runs on a thread; and for searches, which run one at a time, each for all histories that came meanwhile. No
trajectory waits for another one's generation, tool or retrieval.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from rapo_rllib.errors import EnvError, GivenUpError, RequestError, RetrievalError
from rapo_rllib.protocol.make import RolloutProtocol
from rapo_rllib.protocol.turns import Turn
from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.coroutines import Coroutines
from rapo_rllib.rollout.engine import Completion, Engine, Failure
from rapo_rllib.rollout.engine_pump import EnginePump
from rapo_rllib.rollout.env_answers import EnvResult
from rapo_rllib.rollout.env_calls import EnvCalls, EnvPool, acquire_env, reset_env, step_env, truncate_env
from rapo_rllib.rollout.episode import Episode, RunPlan
from rapo_rllib.rollout.group import RolloutGroup, make_group
from rapo_rllib.rollout.retriever import Retriever, Searcher
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import Question, TrajectoryGroup

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.25  # interval of the look for overdue environment calls while nothing else happens


class Observer:
    """Listener to the events of all trajectories, in the engine's thread, so a slow one delays all. This class ignores them.

    If an environment cannot be made, ``ended`` is the only event; if it cannot be reset, ``created`` and ``ended`` are.
    """

    def created(self, episode: Episode) -> None:
        """Note that the trajectory has an environment, not reset yet; a branch has a copy of its origin's."""

    def started(self, episode: Episode) -> None:
        """Note that the environment is reset and the prompt is made; a branch also has the steps of its origin."""

    def stepped(self, episode: Episode, info: Mapping[str, Any], end: str) -> None:
        """Note the environment's answer to the last step, with ``info``; ``end`` names the trajectory's end, if it ended."""

    def given_up(self, episode: Episode) -> None:
        """Forget the trajectory, since its group is no longer needed."""

    def ended(self, episode: Episode) -> None:
        """Note that the trajectory has ended, however it did; its environment is about to be released."""


class AgentLoop(Protocol):
    """Rollout by agents that have a loop of their own, in place of ``Run.roll_out``."""

    async def roll_out(self, run: Run, group: RolloutGroup, episode: Episode) -> str:
        """Roll out a trajectory and name its end. ``EnvError`` and ``RequestError`` make only this trajectory fail."""

    def close(self) -> None:
        """Leave nothing behind."""


class RolloutLoop:
    """Rollouts of questions on one engine.

    Args:
        engine: generates steps.
        chat: turns text into tokens.
        envs: a pool of text environments, one per trajectory under way.
        settings: group size, hybrid policy, branching, budgets.
        retriever: answers histories with step traces; None: every trajectory is on-policy.
        seed: of all coins, and of each request's sampling; None: a random one for coins, and requests use the engine's.
        agents: runs agents, which ask for steps; None: environments answer steps.
    """

    def __init__(
        self,
        engine: Engine,
        chat: RolloutProtocol,
        envs: EnvPool,
        settings: RolloutSettings,
        retriever: Retriever | None = None,
        seed: int | None = 0,
        agents: AgentLoop | None = None,
    ) -> None:
        self.agents = agents
        self.engine = engine
        self.chat = chat
        self.envs = envs
        self.settings = settings
        self.retriever = retriever
        self._seed = random.SystemRandom().getrandbits(31) if seed is None else seed
        self._seeded = seed is not None
        self.env_threads = CallThreads(settings.num_tool_workers, "rapo-env")
        self.search_thread = CallThreads(1, "rapo-retrieval")
        self.stats = RolloutStats()
        self.finished: dict[str, Completion | Failure] = {}  # by request id, for runs that are not being driven now

    def run(
        self,
        questions: Sequence[Question],
        *,
        retrieval_prob: float = 0.0,
        greedy: bool = False,
        group_size: int | None = None,
        env_steps: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        observer: Observer | None = None,
    ) -> list[TrajectoryGroup]:
        """Roll out every question and return the groups in the order of the questions; ``stats`` then holds the counts.

        Args:
            questions: what to roll out.
            retrieval_prob: chance that a hybrid trajectory retrieves after a completed step.
            greedy: take the likeliest tokens, and neither retrieve nor branch (evaluation).
            group_size: trajectories per question; None: ``G`` of the settings.
            env_steps: steps that training has sampled before this run; None: not counted.
            on_progress: called with (ended, all) trajectories whenever one ends.
            observer: told of every trajectory while it grows, in this thread; an exception in it ends the run.

        Raises:
            EngineError: the engine broke; nothing of this run is usable, and nothing of it is left for the next one.
        """
        started, plan = time.monotonic(), self.plan(retrieval_prob, greedy, group_size, env_steps)
        self.stats = RolloutStats()
        copies = Counter[str]()
        groups = [make_group(question, plan, self.stats, copies) for question in questions]
        ended = itertools.count(1)
        on_end = (lambda: None) if on_progress is None else lambda: on_progress(next(ended), plan.size * len(groups))
        Run(self, self.stats, on_end, observer).drive(groups)
        self.stats.seconds = time.monotonic() - started
        return [group.close() for group in groups]

    def plan(
        self, retrieval_prob: float, greedy: bool = False, group_size: int | None = None, env_steps: int | None = None
    ) -> RunPlan:
        """Make the plan of all trajectories that begin now; see ``run`` for the arguments."""
        size = group_size or self.settings.group_size
        return RunPlan(
            chat=self.chat,
            settings=self.settings,
            size=size,
            num_hybrid=0 if greedy or self.retriever is None else min(self.settings.num_hybrid, size),
            retrieval_prob=retrieval_prob,
            policy_version=self.engine.policy_version,
            seed=self._seed,
            seeded=self._seeded,
            greedy=greedy,
            branching=None if greedy else self.settings.branching,
            env_steps=env_steps,
        )

    def close(self) -> None:
        """Stop the threads; one that hangs in a tool is left behind."""
        if self.agents is not None:
            self.agents.close()
        self.env_threads.shutdown()
        self.search_thread.shutdown()
        self.envs.close()


class Run:
    """The trajectories of one run, each a coroutine, with the calls that they wait for. Nothing of it outlives the run.

    Args:
        loop: has the engine, environments, threads and retriever that the trajectories use.
        stats: counts what happens to the trajectories.
        on_end: called whenever a trajectory has ended.
        observer: told of every trajectory.
        one_version: the weights must not change during the run; False for a ``RolloutStream``.
    """

    def __init__(
        self,
        loop: RolloutLoop,
        stats: RolloutStats,
        on_end: Callable[[], None] = lambda: None,
        observer: Observer | None = None,
        one_version: bool = True,
    ) -> None:
        self.stats, self._on_end, self._agents = stats, on_end, loop.agents
        self.envs, self.observer = loop.envs, observer or Observer()
        self._coroutines = Coroutines()
        self.engine = EnginePump(loop.engine, stats, loop.finished, one_version)
        self.env_calls = EnvCalls(loop.env_threads, loop.settings.step_timeout_s, stats)
        self._searcher = Searcher(loop.retriever, loop.search_thread, stats)

    async def roll_out(self, group: RolloutGroup, episode: Episode) -> str:
        """Roll out by algorithm 1: generate a step, let the environment answer, maybe retrieve a step trace, and repeat.

        Returns the name of the trajectory's end. Raises ``EnvError`` and ``RequestError``, which end this trajectory alone.
        """
        await self._start(episode)
        while True:
            completion = await self.engine.generate(episode.request(), group)
            self._begin(group, group.fork(episode, completion))  # branches (ARPO) write their own step instead of this one
            result = await self._step(episode, episode.append_step(completion))
            episode.take_result(result)
            end = await self._end(episode, completion, result)
            self.observer.stepped(episode, result.info, end)
            if end:
                return end
            await self.maybe_retrieve(episode, "step")
            episode.open_turn()

    async def _start(self, episode: Episode) -> None:
        """Reset the environment, make the prompt, append given steps. A branch has these, and goes on after a tool result."""
        if episode.env is not None:
            self.observer.created(episode)
            self.observer.started(episode)
            return
        episode.begin(await self.reset(episode))
        for step in episode.question.start:
            episode.give_result(await self._step(episode, episode.give(step)))
            episode.open_turn()
        self.observer.started(episode)
        await self.maybe_retrieve(episode, "trajectory")

    async def reset(self, episode: Episode) -> str:
        """Lend the episode an environment and reset it; return the first observation."""
        await self.env_calls.call(acquire_env, episode, self.envs)
        self.observer.created(episode)
        return await self.env_calls.call(reset_env, episode, self.envs)

    async def _step(self, episode: Episode, turn: Turn) -> EnvResult:
        return await self.env_calls.call(step_env, episode, turn, episode.trajectory.turn_ended)

    async def _end(self, episode: Episode, completion: Completion, result: EnvResult) -> str:
        """Name the end if the last step ended the trajectory; else append the environment's answer and return an empty text."""
        if episode.question.expected:
            return episode.judge_step()
        if result.terminated or result.truncated:
            episode.take_outcome(result.info)
            return result.info.get("end") or episode.natural_end(completion)
        if completion.finish == "length" or episode.out_of_steps or not episode.append_observation(result.observation):
            episode.take_judgement(await self.env_calls.call(truncate_env, episode))  # running out of budget must not pay
            return "length"
        return ""

    async def maybe_retrieve(self, episode: Episode, level: str) -> None:
        """Show the policy a step trace, if the coin says so, one is found, and the budget has room for it."""
        if not episode.wants_trace(level):
            return
        asked = time.monotonic()
        try:
            found = await self._searcher.search(episode.query())
        except RetrievalError:  # the searcher has counted it
            episode.trajectory.failed_retrievals += 1
            found = None
        self.stats.retrieval_wait_s += time.monotonic() - asked
        if found is not None and not episode.closed and not episode.append_retrieved(found):
            self.stats.retrieval_skipped += 1

    async def _follow(self, group: RolloutGroup, episode: Episode) -> None:
        """Roll out a trajectory to its end, be it a failure, and then begin the episodes with which its group is refilled."""
        try:
            end = await self._outcome(group, episode)
            if group.given_up:  # while a tool or an agent went on
                raise GivenUpError(f"{episode.name} was given up")
            episode.trajectory.end = end
            episode.trajectory.seconds = time.monotonic() - episode.started
            self.observer.ended(episode)
        except GivenUpError:
            self.observer.given_up(episode)
            return
        finally:
            self.envs.release(episode, close_failed=episode.plan.branching is None)
        self._on_end()
        self._begin(group, group.refill())

    def give_up(self, group: RolloutGroup) -> None:
        """Drop a group: its trajectories end at their next request; the observer is told at once of those that have ended."""
        self.engine.give_up(group)
        group.discard()
        for episode in group.episodes:
            if episode.trajectory.end:
                self.observer.given_up(episode)

    async def _outcome(self, group: RolloutGroup, episode: Episode) -> str:
        """Roll out a trajectory and name its end; an error that ends it alone is recorded in it."""
        trajectory = episode.trajectory
        try:
            if self._agents is not None:
                return await self._agents.roll_out(self, group, episode)
            return await self.roll_out(group, episode)
        except (EnvError, RequestError) as error:
            step, age = max(len(trajectory.steps) - 1, 0), time.monotonic() - episode.started
            details = (episode.question.id, episode.name, step, episode.called_tool(), age, error)
            logger.warning("question %s, trajectory %s, step %d, tool %s, %.1f s old: %s", *details)
            trajectory.error = str(error)
            return "error"

    def _begin(self, group: RolloutGroup, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            self._coroutines.run(self._follow(group, episode))

    def spawn(self, beside: Coroutine[Any, None, None]) -> None:
        """Run a further coroutine, which must not raise, beside that of its trajectory."""
        self._coroutines.run(beside)

    def drive(self, groups: Sequence[RolloutGroup]) -> None:
        """Roll out all groups. After an error nothing stays under way, and environments that a call still uses are lost."""
        try:
            for group in groups:
                self.begin(group)
            while self._coroutines:
                self.tick()
        except BaseException:
            self.abort()
            raise
        self.stats.idle_s = self.waited_s

    def begin(self, group: RolloutGroup) -> None:
        """Begin the trajectories of a group that are sampled from the start."""
        self._begin(group, group.open())

    def abort(self) -> None:
        """End all requests and coroutines; environments that a call still uses are lost."""
        self.engine.abort()
        self._coroutines.close()

    @property
    def waited_s(self) -> float:
        """Seconds in which no trajectory could go on."""
        return self._coroutines.waited_s

    def tick(self) -> None:
        """Advance the engine by one engine step, and every trajectory that can go on."""
        generating = self.engine.poll()
        self._coroutines.resume(timeout_s=0.0 if generating else _LOOK_EVERY_S)
        self.env_calls.end_overdue()
        self._searcher.start(self._coroutines)
