"""The zygote: calls that it cannot fork, who hangs up, and many calls that end in every way."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
from collections.abc import Callable, Iterator

import pytest
from stress import stress

from rapo_rllib.sandbox.inside.jail import Jail, Limits
from rapo_rllib.sandbox.inside.zygote import LOCKED, Child, Zygote


class Caller:
    """The supervisor's side of one call."""

    def __init__(self, control: socket.socket) -> None:
        request, self.request = os.pipe()
        self.output, output = os.pipe()
        self.status, status = os.pipe()
        self.lifeline, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limits = Limits(60, 2**30, 2**20, 10, True)
        socket.send_fds(control, [json.dumps(limits).encode()], [end.fileno(), request, output, status])
        end.close()
        for fd in (request, output, status):
            os.close(fd)

    def hear(self) -> dict[str, object]:
        message, fds, *_ = socket.recv_fds(self.lifeline, 4096, 1)
        for fd in fds:
            os.close(fd)
        return json.loads(message)

    def close(self) -> None:
        self.lifeline.close()
        for fd in (self.request, self.output, self.status):
            os.close(fd)


class World:
    """A zygote of this process, whose rounds the test makes; its children are locked into nothing."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.zygote = Zygote(theirs, Jail((), (), "/"), 0)
        self.callers: list[Caller] = []

    def call(self) -> Caller:
        self.callers.append(Caller(self.control))
        return self.callers[-1]

    def round(self) -> bool:
        """One round; children inherit a stdout that is not pytest's."""
        with open(1, "w", closefd=False) as stdout, contextlib.redirect_stdout(stdout):
            return self.zygote.round()

    def rounds(self, until: Caller) -> dict[str, object]:
        """Rounds until it says something to the caller."""
        while not select.select([until.lifeline], [], [], 0)[0]:
            self.round()
        return until.hear()

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        while self.zygote._watched:
            self.round()
        self.control.close()
        assert not self.round()
        self.zygote.control.close()
        self.zygote._poll.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.timeout(60)
def test_an_event_of_a_closed_descriptor_is_not_its_successors(world: World) -> None:
    """One round has the first child's end, its supervisor's, and the order for another, which gets its descriptors' numbers."""
    gc.collect()  # sockets of other tests that ended in between would free lower numbers
    first = world.call()
    world.rounds(first)
    (old,) = set(world.zygote._watched.values())
    numbers = {old.pidfd, old.lifeline.fileno()}
    os.close(first.request)  # it has no more to do
    first.request = os.open(os.devnull, os.O_RDONLY)
    select.select([old.pidfd], [], [])
    first.lifeline.shutdown(socket.SHUT_RDWR)
    second = world.call()
    world.round()
    (new,) = set(world.zygote._watched.values())
    assert {new.pidfd, new.lifeline.fileno()} & numbers, "no number was used again: the test shows nothing"
    os.write(second.request, (5).to_bytes(8, "little") + b"6 * 7")
    assert "forked" in second.hear() and world.rounds(second) == {"ended": 0}
    assert os.read(second.status, 99) == LOCKED + bytes([0])
    assert b"42\n" in os.read(second.output, 9999)  # libraries of the test's own process may say that it forked


@pytest.mark.timeout(60)
def test_who_hangs_up_ends_that_child_alone(world: World) -> None:
    neighbour, other = world.call(), world.call()
    assert "forked" in world.rounds(neighbour) and "forked" in world.rounds(other)
    other.lifeline.close()
    while len(world.zygote._watched) > 2:
        world.round()
    os.write(neighbour.request, (5).to_bytes(8, "little") + b"6 * 7")
    assert world.rounds(neighbour) == {"ended": 0}


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
    gone.lifeline.close()  # nobody hears why
    for _ in range(2):
        world.round()
    assert str(error) in str(told.hear()["failed"])
    while world.callers:
        world.callers.pop().close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not world.zygote._watched


@pytest.mark.timeout(60)
@pytest.mark.parametrize("step", ["open", "first", "second"])
def test_a_child_that_cannot_be_watched_is_told_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    forked: list[int] = []

    def opened(pid: int, pidfd_open: Callable[[int], int] = os.pidfd_open) -> int:
        forked.append(pid)
        if step == "open":
            raise OSError(24, "Too many open files")
        return pidfd_open(pid)

    def watch(fd: int, child: Child, events: int, real: Callable[..., None] = world.zygote._watch) -> None:
        if (events == 0) == (step == "second"):
            raise OSError(12, "Too many open files")
        real(fd, child, events)

    monkeypatch.setattr(os, "pidfd_open", opened)
    monkeypatch.setattr(world.zygote, "_watch", watch)
    caller = world.call()
    assert "Too many open files" in str(world.rounds(caller)["failed"])
    world.callers.pop().close()
    assert not os.path.exists(f"/proc/{forked[0]}")
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not world.zygote._watched


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
