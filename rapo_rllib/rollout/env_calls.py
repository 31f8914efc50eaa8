"""Calls into text environments, made on the loop's threads. Whatever an environment raises becomes an ``EnvError``."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from rapo_rllib.errors import EnvError
from rapo_rllib.protocol.steps import parse_step
from rapo_rllib.rollout.session import EnvResult, Session
from rapo_rllib.types import Question

# SystemExit: a tool that calls exit() ends its trajectory, not the training
_FAILURES = (Exception, SystemExit)


class Borrower(Protocol):
    """A trajectory that is lent an environment, and the strings at which its steps stop."""

    question: Question
    env: Any
    stop: tuple[str, ...]
    env_started: float | None  # when the call that is running began; None: none runs


class EnvPool:
    """Text environments that are made on demand and used by one trajectory at a time.

    Args:
        make_env: makes one ``gymnasium.Env`` with text observations and actions.
        answer_tag: its closing form also ends a step.
    """

    def __init__(self, make_env: Callable[[], Any], answer_tag: str) -> None:
        self._make_env = make_env
        self._answer_tag = answer_tag
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    def acquire(self, session: Borrower) -> None:
        """Give ``session`` an environment of its own, and the strings at which its steps stop."""
        with self._lock:
            session.env = self._idle.pop() if self._idle else None
        if session.env is None:
            session.env = self._make_env()
        tags = (*getattr(session.env.unwrapped, "tool_tags", ()), self._answer_tag)
        session.stop = tuple(f"</{tag}>" for tag in tags)

    def release(self, session: Borrower) -> None:
        """Take the environment of a trajectory that ended."""
        env, session.env = session.env, None
        if env is not None:
            getattr(env.unwrapped, "end_sessions", _nothing)()  # the episode may have been cut short
            with self._lock:
                self._idle.append(env)

    def close(self) -> None:
        """Close the idle environments."""
        with self._lock:
            for env in self._idle:
                env.close()
            self._idle.clear()


def check_copies(env: Any) -> None:
    """Raise ``ValueError`` unless an environment can be copied, as trajectories that branch need it."""
    try:
        copy.deepcopy(env)
    except Exception as error:
        raise ValueError(
            f"branching: a trajectory that forks copies its environment, and {type(env.unwrapped).__name__} cannot be copied "
            f"({error}). Give it a __deepcopy__ that shares what can be shared, or leave branching out."
        ) from error


def called_tool(session: Session) -> str | None:
    """Tag of the tool that the last generated step calls, whether or not the call has returned."""
    if not session.trajectory.steps:
        return None
    answer_tag = session.chat.settings.answer_tag
    tool_tags = [stop[2:-1] for stop in session.stop if stop != f"</{answer_tag}>"]
    return parse_step(session.trajectory.steps[-1].text, session.chat.settings, tool_tags).tool_tag


def reset_env(envs: EnvPool, session: Borrower) -> str:
    """Start an episode; returns the first observation: the question as text."""
    session.env_started = time.monotonic()
    try:
        envs.acquire(session)
        observation, _info = session.env.reset(seed=session.question.seed, options={"question": session.question})
        return _readable(observation)
    except _FAILURES as error:
        raise EnvError(f"env.reset failed for question {session.question.id}: {error!r}") from error
    finally:
        session.env_started = None


def step_env(session: Session) -> EnvResult:
    """Hand the text of a generated step to the environment."""
    assert session.completion is not None
    env = session.env.unwrapped
    if hasattr(env, "turn_ended"):
        env.turn_ended = session.trajectory.turn_ended
    return step_text(session, session.completion.text)


def step_text(session: Borrower, text: str) -> EnvResult:
    """Hand ``text`` to the environment that ``session`` was lent."""
    session.env_started = time.monotonic()
    try:
        observation, reward, terminated, truncated, info = session.env.step(text)
        return EnvResult(_readable(observation), float(reward), bool(terminated), bool(truncated), dict(info))
    except _FAILURES as error:
        raise EnvError(f"env.step failed for question {session.question.id}: {error!r}") from error
    finally:
        session.env_started = None


def judge_env(session: Borrower) -> EnvResult:
    """Tell the environment that a budget of the rollout has ended its episode; returns its judgement of what there is.

    ``truncate()`` of an environment returns reward and info as its step does at an end. Without it the rewards so far are all.
    """
    session.env_started = time.monotonic()
    try:
        reward, info = getattr(session.env.unwrapped, "truncate", _no_judgement)()
        return EnvResult("", float(reward), False, True, {"correct": False, "format_ok": False, **info})
    except _FAILURES as error:
        raise EnvError(f"env.truncate failed for question {session.question.id}: {error!r}") from error
    finally:
        session.env_started = None


def _no_judgement() -> tuple[float, dict[str, Any]]:
    """For environments that judge only what they end themselves."""
    return 0.0, {}


def _readable(observation: Any) -> str:
    """As text that can be encoded: a lone surrogate, which no tokenizer takes, becomes a question mark."""
    return str(observation).encode("utf-8", "replace").decode()


def _nothing() -> None:
    """For environments whose tools keep nothing."""
