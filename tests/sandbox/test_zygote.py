"""The zygote: calls that it cannot fork, and many calls that end in every way."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator

import pytest
from stress import stress

from rapo_rllib.sandbox.inside.jail import Jail, SandboxLimits
from rapo_rllib.sandbox.inside.zygote import LOCKED, Zygote


class Caller:
    """The supervisor's side of one call."""

    def __init__(self, control: socket.socket) -> None:
        self.socket, end = socket.socketpair()
        self.output, output = os.pipe()
        socket.send_fds(control, [json.dumps([*SandboxLimits(60), True]).encode()], [end.fileno(), output])
        end.close()
        os.close(output)

    def locked_in(self) -> int:
        """Its pidfd."""
        _, (pidfd,), *_ = socket.recv_fds(self.socket, 4096, 1)
        assert self.socket.recv(99) == LOCKED
        return pidfd

    def close(self) -> None:
        self.socket.close()
        os.close(self.output)


class World:
    """A zygote of this process, whose rounds the test makes; its children are locked into nothing."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.zygote = Zygote(theirs, Jail((), (), "/"), 0)
        self.callers: list[Caller] = []

    def call(self) -> Caller:
        self.callers.append(Caller(self.control))
        return self.callers[-1]

    def watched(self) -> list[int]:
        """Pidfds of its children."""
        return [fd for fd, key in self.zygote.ends.get_map().items() if key.data is not None]

    def round(self) -> bool:
        """One round; children inherit a stdout that is not pytest's."""
        with open(1, "w", closefd=False) as stdout, contextlib.redirect_stdout(stdout):
            return self.zygote.round()

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        while self.watched():
            self.round()
        self.control.close()
        assert not self.round()
        self.zygote.control.close()
        self.zygote.ends.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.timeout(60)
def test_a_childs_end_and_the_next_order_in_one_round(world: World) -> None:
    first = world.call()
    world.round()
    ours, (pidfd,) = first.locked_in(), world.watched()
    signal.pidfd_send_signal(ours, signal.SIGKILL)
    os.close(ours)
    select.select([pidfd], [], [])
    second = world.call()
    world.round()
    os.close(second.locked_in())
    assert len(world.watched()) == 1
    second.socket.send((5).to_bytes(8, "little") + b"6 * 7")
    assert second.socket.recv(99) == bytes([0])
    assert b"42\n" in os.read(second.output, 9999)  # libraries of the test's own process may say that it forked
    assert first.socket.recv(99) == bytes([4])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("error", [BlockingIOError(11, "Resource temporarily unavailable"), MemoryError("no memory")])
def test_a_call_that_cannot_be_forked_is_told_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))

    def refuse() -> int:
        raise error

    monkeypatch.setattr(os, "fork", refuse)
    told, gone = world.call(), world.call()
    gone.socket.close()  # nobody hears why
    for _ in range(2):
        world.round()
    assert told.socket.recv(4096).decode() == f"{type(error).__name__}: {error}"
    while world.callers:
        world.callers.pop().close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not world.watched()


@pytest.mark.timeout(60)
def test_a_child_that_cannot_be_watched_is_told_and_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    zygote, forked = os.getpid(), list[int]()

    def opened(pid: int, pidfd_open: Callable[[int], int] = os.pidfd_open) -> int:
        if os.getpid() != zygote:
            return pidfd_open(pid)
        forked.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", opened)
    caller = world.call()
    world.round()
    said = b""
    while chunk := socket.recv_fds(caller.socket, 4096, 0)[0]:
        said += chunk
    assert b"Too many open files" in said
    world.callers.pop().close()
    assert not os.path.exists(f"/proc/{forked[0]}")
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not world.watched()


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_calls_that_end_in_every_way_at_once(namespaces: str) -> None:
    check(calls=240, namespaces=namespaces)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_a_hundred_thousand_calls(namespaces: str) -> None:
    check(calls=50_000, namespaces=namespaces)


def check(calls: int, namespaces: str) -> None:
    counted = stress(calls, threads=16, sessions=4, namespaces=namespaces)
    bad = {name: counted[name] for name in ("lost", "wrong", "broken", "restarts")}
    assert not any(bad.values()), counted
    assert counted["session calls"] > 4
