"""Reach the owner of a Milvus Lite path. Flow: the buffer and the corpus -> here -> ``owner.py``.

Inside Ray the owner is an actor named after the path. Its first user starts it on that user's node, and it ends with that user;
the next user starts another. Users on the same node ask it by ``line.py``. Without Ray the owner is an object in this process.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.address import checked_uri
from rapo_rllib.milvus.lite.line import Address, Line, LineServer
from rapo_rllib.milvus.lite.owner import RAY, Owner, OwnerEndedError

logger = logging.getLogger(__name__)

PAGE = 4096  # rows of one answer
BUSY_S = 60.0  # limit of a call: the owner may be reading another collection, or learning inverted lists
START_S = 120.0  # limit of an actor's start, on a busy machine
OPEN_S = 600.0  # limit of the first call about a collection, which reads its rows
PATIENCE_S = START_S  # limit of the wait for a lost owner, the next one's start included
LONG_S = 3600.0
LONG = ("flush", "drop")
UNREAD = ("exists", "create", "drop")  # methods that do not read the collection
_NAMES = ("exists", "create", "upsert", "shape", "delete", *LONG, "search", "search_words", "get", "page", "count")
METHODS = {name: inspect.signature(getattr(Owner, name)) for name in _NAMES}
NAMESPACE = "rapo_rllib"

_lock = threading.RLock()  # guards the next three; while it is held, no call of Ray, Lite or an owner is made
_here: dict[str, Owner] = {}  # the owners in this process, by path
_reached: dict[str, Reached] = {}  # the owners in actors, by path
_users: dict[str, set[int]] = {}  # ids of this process's handles that use either, by path
_inherited: list[Any] = []  # actors of a fork's parent, kept in the child: else Ray would be told that their handles are gone


class Reached:
    """This process's connection to the actor of a path.

    Each ``LiteHandle`` of a process shares it: Ray finds a dead actor by its name as long as any Ray handle of it is held.
    """

    def __init__(self, actor: Any, line: Line | None) -> None:
        self.actor, self.line = actor, line  # no line: the actor is on another node
        self.known: set[str] = set()  # collections that the owner has read

    def drop(self) -> None:
        """Release the actor, even if this object is still referred to."""
        self.actor = None
        if self.line is not None:
            self.line.close()

    def ask(self, timeout_s: float, method: str, arguments: tuple) -> tuple[Exception | None, Any]:
        """Ask the actor, and return its answer; see ``OwnerActor.call``."""
        import ray

        collection = arguments[0]
        patience_s = max(timeout_s, BUSY_S if collection in self.known else OPEN_S)
        found: tuple[Exception | None, Any]
        if self.line is not None:
            found = self.line.ask(patience_s, time.time() + patience_s, method, *arguments)
        elif (actor := self.actor) is not None:
            found = ray.get(actor.call.remote(math.inf, method, *arguments), timeout=patience_s)
        else:
            raise ConnectionResetError("another thread has let go of it")
        if method not in UNREAD:
            self.known.add(collection)
        return found


def _forget_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    for owner in _here.values():
        owner.forget_in_child()
    _inherited.append(dict(_reached))
    for of_parent in (_here, _reached, _users):
        of_parent.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class LiteHandle:
    """Operations on the collections of a Lite path: those of ``MilvusHandle``, most of them passed on to the owner.

    Cheap to construct, safe in threads. Every method but ``close`` raises ``RetrievalError`` when the path cannot be
    read or written, or is open elsewhere.
    """

    is_lite = True

    def __init__(self, uri: str, timeout_s: float = 10.0, *, uri_key: str) -> None:
        self.uri = checked_uri(uri, uri_key)
        self._uri_key, self._timeout_s = uri_key, timeout_s

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return a function that calls this method of the owner, in this process or in its actor."""
        if method not in METHODS:
            raise AttributeError(f"a Milvus Lite path has no {method}")
        return partial(self._ask, method)

    def close(self) -> None:
        """Let go of the path. The next call opens it again."""
        _leave(self.uri, id(self))

    def pages(self, collection: str, fields: Sequence[str], rows: int = PAGE) -> Iterator[list[dict[str, Any]]]:
        """See ``MilvusHandle.pages``."""
        after = None
        while True:
            page, after = self._ask("page", collection, fields, after, min(rows, PAGE))
            if page:
                yield page
            if after is None:
                return

    def set_index(self, collection: str, index: str = "auto") -> None:
        """Do nothing: the owner chooses by the present size."""

    def _ask(self, method: str, *given: Any, **named: Any) -> Any:
        bound = METHODS[method].bind(None, *given, **named)
        bound.apply_defaults()
        arguments = bound.args[1:]
        self._join()
        if _is_inside_ray():
            with _lock:  # an owner from before Ray's start cannot be reached by other processes in Ray
                before = _here.pop(self.uri, None)
            if before is not None:
                before.end()
            return self._ask_actor(method, arguments, LONG_S if method in LONG else self._timeout_s)
        while True:
            with _lock:
                _reached.pop(self.uri, None)  # an actor of a Ray that has ended
                owner = _here.setdefault(self.uri, Owner(self.uri, self._uri_key))
            try:
                return getattr(owner, method)(*arguments)
            except OwnerEndedError:  # another thread let go of the path
                continue

    def _join(self) -> None:
        with _lock:
            users = _users.setdefault(self.uri, set())
            if id(self) not in users:
                users.add(id(self))
                weakref.finalize(self, _leave, self.uri, id(self))

    def _ask_actor(self, method: str, arguments: tuple, timeout_s: float) -> Any:
        from ray.exceptions import GetTimeoutError, RayError

        lost_since, wait_s = math.inf, 0.05
        while True:
            reached = None
            try:
                reached = self._reach()
                error, value = reached.ask(timeout_s, method, arguments)
            except (TimeoutError, GetTimeoutError) as lost:
                _lose(self.uri, reached)
                raise RetrievalError(f"Milvus at {self.uri} does not answer ({method}): {lost}") from None
            except (RayError, EOFError, OSError, ValueError) as lost:  # ValueError: an ending actor still has the name
                _lose(self.uri, reached)
                lost_since = min(lost_since, time.monotonic())
                if time.monotonic() - lost_since > PATIENCE_S:  # from None: the cause would keep handles of the actor
                    raise RetrievalError(f"Milvus at {self.uri}: its owner ends as often as it is started: {lost}") from None
            else:
                if error is not None:
                    raise error
                return value
            time.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 2, 1.0)

    def _reach(self) -> Reached:
        """Find the actor or start it, and open a line to it if it is on this node."""
        import ray

        with _lock:
            reached = _reached.get(self.uri)
        if reached is None:
            actor, line = _actor(self.uri, self._uri_key), None
            try:
                node, address = ray.get(actor.place.remote(), timeout=START_S)
            except BaseException:
                actor = None  # Ray's error refers to itself and to this frame, which would keep the handle
                raise
            if node == ray.get_runtime_context().get_node_id():
                with suppress(ConnectionRefusedError):  # e.g. the actor is in another container
                    line = Line(address)
            with _lock:  # another thread may have been faster
                reached = _reached.setdefault(self.uri, Reached(actor, line))
        return reached


class OwnerActor:
    """The owner of a path as a Ray actor."""

    def __init__(self, path: str, uri_key: str) -> None:
        import ray

        self._owner = Owner(path, uri_key, f"{RAY}{ray.get_runtime_context().get_job_id()}")
        self._line = LineServer(self.call)

    def __ray_shutdown__(self) -> None:
        """Release the path for the next owner."""
        self._owner.end()

    def place(self) -> tuple[str, Address]:
        """Return the actor's node, and the address of its socket there."""
        import ray

        return ray.get_runtime_context().get_node_id(), self._line.address

    def call(self, deadline: float, method: str, *arguments: Any) -> tuple[Exception | None, Any]:
        """Call a method of the owner, unless the caller has given up: the caller may have asked again, or something else.

        Returns the error (or None) and the method's result. ``deadline`` is by the clock of this machine.
        """
        try:
            with self._owner.lock:  # which others may hold for long
                if time.time() > deadline:
                    return RetrievalError(f"{method} came too late"), None
                return None, getattr(self._owner, method)(*arguments)
        except (ValueError, RetrievalError) as error:
            return error, None
        except OwnerEndedError:
            raise
        except Exception as error:
            logger.exception("%s of %s", method, arguments[:1])
            return RetrievalError(f"Milvus at {self._owner.path} failed in {method}: {type(error).__name__}: {error}"), None


def _is_inside_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _actor(path: str, uri_key: str) -> Any:
    """Return the actor that owns the path, made on this node if there is none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": path, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0, "scheduling_strategy": here}
    return ray.remote(OwnerActor).options(**options).remote(path, uri_key)


def _lose(path: str, reached: Reached | None) -> None:
    """Drop the connection ``reached``, but keep a newer one of another thread: threads would close each other's lines."""
    with _lock:
        if reached is not None and _reached.get(path) is reached:
            del _reached[path]
    if reached is not None:
        reached.drop()


def _leave(path: str, user: int) -> None:
    """Remove a user of the path; after the last one in this process, release the owner."""
    with _lock:
        users = _users.get(path, set())
        users.discard(user)
        owner = None if users else _here.pop(path, None)
        reached = None if users else _reached.pop(path, None)
    if owner is not None:  # without the lock: a call in progress may collect a handle, whose finalizer waits for the lock
        owner.end()
    if reached is not None:
        reached.drop()
