"""Calls into text environments, made on the loop's threads. Whatever an environment raises becomes an ``EnvError``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rapo_rllib.errors import EnvError
from rapo_rllib.rollout.session import EnvResult, Session


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

    def lend(self, session: Session) -> None:
        """Give ``session`` an environment of its own, and the strings at which its steps stop."""
        with self._lock:
            session.env = self._idle.pop() if self._idle else None
        if session.env is None:
            session.env = self._make_env()
        tags = (*getattr(session.env.unwrapped, "tool_tags", ()), self._answer_tag)
        session.stop = tuple(f"</{tag}>" for tag in tags)

    def give_back(self, session: Session) -> None:
        """Take the environment of a trajectory that ended."""
        env, session.env = session.env, None
        if env is not None:
            with self._lock:
                self._idle.append(env)

    def close(self) -> None:
        """Close the idle environments."""
        with self._lock:
            for env in self._idle:
                env.close()
            self._idle.clear()


def reset_env(envs: EnvPool, session: Session) -> str:
    """Start an episode; returns the first observation: the question as text."""
    try:
        envs.lend(session)
        observation, _info = session.env.reset(seed=session.question.seed, options={"question": session.question})
    except Exception as error:
        raise EnvError(f"env.reset failed for question {session.question.id}: {error!r}") from error
    return str(observation)


def step_env(session: Session) -> EnvResult:
    """Hand the text of a generated step to the environment."""
    assert session.completion is not None
    session.env_started = time.monotonic()
    try:
        observation, reward, terminated, truncated, info = session.env.step(session.completion.text)
    except Exception as error:
        raise EnvError(f"env.step failed for question {session.question.id}: {error!r}") from error
    finally:
        session.env_started = None
    return EnvResult(str(observation), float(reward), bool(terminated), bool(truncated), dict(info))
