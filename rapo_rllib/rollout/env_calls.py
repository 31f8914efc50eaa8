"""Calls into text environments, made on threads. An exception of an environment becomes an ``EnvError``."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from rapo_rllib.errors import BusyError, EnvError, is_late
from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.coroutines import result_of
from rapo_rllib.rollout.env_answers import EnvResult, first_observation, judgement, step_result
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.stats import RolloutStats

T = TypeVar("T")

logger = logging.getLogger(__name__)


class EnvPool:
    """Text environments that are made on demand and used by one trajectory at a time.

    Args:
        make_env: makes one ``gymnasium.Env`` with text observations and actions.
        answer_tag: tag around an answer; its closing tag also ends a step.
    """

    def __init__(self, make_env: Callable[[], Any], answer_tag: str) -> None:
        self._make_env = make_env
        self._answer_tag = answer_tag
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    def acquire(self, episode: Episode) -> None:
        """Give ``episode`` an environment of its own, and the strings at which its steps stop."""
        episode.env_failed = False
        with self._lock:
            episode.env = self._idle.pop() if self._idle else None
        if episode.env is None:
            episode.env = self._make_env()
        if hasattr(episode.env.unwrapped, "env_steps"):
            episode.env.unwrapped.env_steps = episode.plan.env_steps
        tags = (*getattr(episode.env.unwrapped, "tool_tags", ()), self._answer_tag)
        episode.stop = tuple(f"</{tag}>" for tag in tags)

    def release(self, episode: Episode, close_failed: bool = True) -> None:
        """Take back the environment of an ended trajectory; an environment that failed is not lent again.

        Args:
            episode: the ended trajectory.
            close_failed: close an environment that failed; False: leave it open, since copies may share its resources.
        """
        env, episode.env = episode.env, None
        if env is not None and episode.env_failed:
            # on a thread of its own: a failed environment may also hang
            threading.Thread(target=_let_go, args=(env, close_failed), daemon=True, name="rapo-env-close").start()
        elif env is not None and _let_go(env, close=False):  # sessions may be open: the episode may have been cut short
            with self._lock:
                self._idle.append(env)

    def close(self) -> None:
        """Close the idle environments."""
        with self._lock:
            for env in self._idle:
                env.close()
            self._idle.clear()


def _let_go(env: Any, close: bool) -> bool:
    """End an environment's sessions, and ``close`` it if asked; an exception is logged, and returned as False."""
    try:
        getattr(env.unwrapped, "end_sessions", lambda: None)()
        if close:
            env.close()
    except (Exception, SystemExit) as error:
        logger.warning("an environment could not be closed, and is used no more: %r", error)
        return False
    return True


def check_copies(env: Any) -> None:
    """Refuse, by a ``ValueError``, an environment that cannot be copied, as trajectories that branch need it."""
    try:
        copy.deepcopy(env)
    except Exception as error:
        raise ValueError(
            f"branching: a trajectory that forks copies its environment, and {type(env.unwrapped).__name__} cannot be copied "
            f"({error}). Give it a __deepcopy__ that shares what can be shared, or leave branching out."
        ) from error


@contextmanager
def _calling(name: str, episode: Episode) -> Iterator[None]:
    episode.env_started = time.monotonic()
    try:
        yield
    except BusyError:
        raise
    except (Exception, SystemExit) as error:  # a tool that calls exit() ends its trajectory, not the training
        episode.env_failed = True
        what = str(error) if isinstance(error, EnvError) else repr(error)
        raise EnvError(f"env.{name} failed: {what}") from error
    finally:
        episode.env_started = None


def acquire_env(episode: Episode, envs: EnvPool) -> None:
    """Lend an environment to the episode; without this call ``reset_env`` lends one."""
    with _calling("acquire", episode):
        envs.acquire(episode)


def reset_env(episode: Episode, envs: EnvPool) -> str:
    """Start an episode; returns the first observation: the question as text."""
    with _calling("reset", episode):
        if episode.env is None:
            envs.acquire(episode)
        return first_observation(episode.env.reset(seed=episode.question.seed, options={"question": episode.question}))


def step_env(episode: Episode, text: str, turn_ended: bool | None = None) -> EnvResult:
    """Hand a step to the environment; if it has ``turn_ended``, tell it whether the policy ended its turn with the step."""
    with _calling("step", episode):
        if turn_ended is not None and hasattr(episode.env.unwrapped, "turn_ended"):
            episode.env.unwrapped.turn_ended = turn_ended
        return step_result(episode.env.step(text))


def truncate_env(episode: Episode) -> EnvResult:
    """Tell the environment that a budget has ended its episode; return its reward and info.

    ``truncate()`` of an environment returns reward and info as ``step`` does at an end; without this method the reward is 0.
    """
    with _calling("truncate", episode):
        truncate: Callable[[], tuple[float, dict[str, Any]]] = getattr(episode.env.unwrapped, "truncate", lambda: (0.0, {}))
        return judgement(truncate())


def overdue_s(episode: Episode, timeout_s: float) -> float:
    """Return the seconds that the episode's running call has taken; 0: no call runs, or the call has time left.

    An environment's ``extra_s`` extends the time of its present step: ``timeout_s`` is meant for one tool call, not for a turn.
    """
    started = episode.env_started
    age = 0.0 if started is None else time.monotonic() - started
    extra_s = getattr(getattr(episode.env, "unwrapped", None), "extra_s", 0.0)
    return age if age > timeout_s + extra_s else 0.0


class EnvCalls:
    """The environment calls that coroutines await; a call over ``timeout_s`` ends with an ``EnvError``, and is counted."""

    def __init__(self, threads: CallThreads, timeout_s: float, stats: RolloutStats) -> None:
        self._threads, self._timeout_s, self._stats = threads, timeout_s, stats
        self._under_way: dict[Future[Any], tuple[str, Episode]] = {}

    async def call(self, function: Callable[..., T], episode: Episode, *arguments: Any) -> T:
        """Call ``acquire_env``, ``reset_env``, ``step_env`` or ``truncate_env`` on a thread and await its result.

        A call that finds a tool busy is made again when the tool has room; no thread is held meanwhile.
        """
        while True:
            try:
                return await self._called(function, episode, *arguments)
            except BusyError as busy:
                free = busy.free
            await result_of(free)

    async def _called(self, function: Callable[..., T], episode: Episode, *arguments: Any) -> T:
        future, name = self._threads.submit(function, episode, *arguments), function.__name__.removesuffix("_env")
        self._under_way[future] = (name, episode)
        try:
            return await result_of(future)
        except EnvError as error:
            if is_late(error):
                self._stats.deadlines[name] += 1
            raise
        finally:
            del self._under_way[future]
            self._abandon(future, episode)  # if it still runs, since the run was given up

    def end_overdue(self) -> None:
        """Abandon calls that have not returned in time; each ends with an ``EnvError``."""
        for future, (name, episode) in self._under_way.items():
            if age := overdue_s(episode, self._timeout_s):
                error = EnvError(f"env.{name} has not returned after {age:.1f} s (step_timeout_s = {self._timeout_s})")
                error.__cause__ = TimeoutError()
                self._abandon(future, episode, error)

    def _abandon(self, future: Future[Any], episode: Episode, error: EnvError | None = None) -> None:
        if self._threads.abandon(future, error):
            episode.env = None  # still in use by a thread that may never return
