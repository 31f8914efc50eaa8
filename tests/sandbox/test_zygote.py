"""The zygote's loop: descriptors that are closed and used again in one round, and many calls that end in every way."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from stress import stress

from rapo_rllib.sandbox import LostProcess
from rapo_rllib.sandbox.exchange import make_pipes
from rapo_rllib.sandbox.forkserver import hear
from rapo_rllib.sandbox.inside import zygote as inside
from rapo_rllib.sandbox.inside.jail import Jail, Limits
from rapo_rllib.sandbox.inside.warden import Orders
from rapo_rllib.sandbox.inside.zygote import Zygote

IN = select.EPOLLIN


class Caller:
    """The supervisor's side of one call."""

    def __init__(self, control: socket.socket, one_call: bool) -> None:
        self.pipes, theirs = make_pipes()
        self.lifeline, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = {"limits": Limits(60, 2**30, 2**20, 10, one_call), "seed": 1}
        socket.send_fds(control, [json.dumps(order).encode()], [end.fileno(), *theirs])
        end.close()
        for fd in theirs:
            os.close(fd)

    def ask(self, code: bytes) -> None:
        self.lifeline.send(b'{"timeout_s": 60}')
        os.write(self.pipes.request, len(code).to_bytes(8, "little") + code)

    def close(self) -> None:
        self.lifeline.close()
        self.pipes.close()


class World:
    """A zygote of this process, whose rounds the test makes; its children are locked into nothing."""

    def __init__(self, folder: Path) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.warden, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        self.zygote = Zygote(theirs, Jail((), ()), str(folder), statm, Orders(link))
        self.zygote.listen()
        self.callers: list[Caller] = []

    def start(self, one_call: bool = True) -> Caller:
        self.callers.append(Caller(self.control, one_call))
        return self.callers[-1]

    def call(self, code: bytes) -> Caller:
        caller = self.start()
        caller.ask(code)
        return caller

    def handle(self, events: Sequence[tuple[int, int]]) -> None:
        """One round; children inherit a stdout that is not pytest's."""
        with open(1, "w", closefd=False) as stdout, contextlib.redirect_stdout(stdout):
            self.zygote.handle(events)

    def round(self) -> None:
        with open(1, "w", closefd=False) as stdout, contextlib.redirect_stdout(stdout):
            self.zygote.round()

    def rounds(self, until: Caller) -> list[bytes]:
        """Rounds as the zygote makes them, until it says something to the caller."""
        while not select.select([until.lifeline], [], [], 0)[0]:
            self.round()
        return [until.lifeline.recv(4096)]

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        while self.zygote.children:
            self.round()
        assert self.zygote.orders is not None
        for held in (self.zygote.control, self.control, self.zygote.orders.link, self.warden):
            held.close()
        os.close(self.zygote.statm)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_the_last_word_is_heard_though_the_other_side_did_not_read_ours() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(b"unread")
    theirs.send(b'{"ended": 0}')
    theirs.close()
    assert hear(ours) == {"ended": 0}
    with pytest.raises(LostProcess):
        hear(ours)
    ours.close()


def descriptors(child: inside.Child) -> list[int]:
    return [child._pidfd, child._status, child._lifeline.fileno()]


@pytest.mark.timeout(60)
def test_an_event_of_a_closed_descriptor_is_not_its_successors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.call(b"import os; os._exit(0)")
    world.handle([(world.zygote.control.fileno(), IN)])
    (child,) = world.zygote.children
    old = descriptors(child)
    select.select([child._pidfd], [], [])  # it is dead

    def never_waiting(pid: int, options: int, waitpid=os.waitpid) -> tuple[int, int]:
        assert options & os.WNOHANG
        return waitpid(pid, options)

    monkeypatch.setattr(os, "waitpid", never_waiting)
    second = world.call(b"6 * 7")
    # one round: the first child's end, a new child, and what else the first one had
    world.handle([(old[0], IN), (world.zygote.control.fileno(), IN), *((fd, IN) for fd in old)])
    (successor,) = world.zygote.children
    assert set(descriptors(successor)) & set(old), "no number was used again: the test shows nothing"
    assert json.loads(first.lifeline.recv(4096)) == {"ended": 0, "cause": None}
    assert [json.loads(said) for said in world.rounds(second)] == [{"status": 0}]
    assert os.read(second.pipes.output, 99) == b"42\n"


def test_who_gets_a_number_in_a_round_hears_nothing_in_it(world: World) -> None:
    heard: list[str] = []
    first, second = socket.socketpair()

    def successor() -> None:
        world.zygote.forget(first.fileno())
        world.zygote.watch(first.fileno(), lambda: heard.append("successor"))

    world.zygote.watch(first.fileno(), successor)
    event = (first.fileno(), IN)
    world.handle([event, event])
    assert heard == []
    world.handle([event])
    assert heard == ["successor"]
    world.zygote.forget(first.fileno())
    world.handle([event])
    assert heard == ["successor"]
    first.close(), second.close()


@pytest.mark.timeout(60)
def test_no_handler_waits(world: World) -> None:
    """A child that has nothing to do, and an event for each of its descriptors: none of them is true."""
    caller = world.start()
    world.handle([(world.zygote.control.fileno(), IN)])
    (child,) = world.zygote.children
    while not child._locked:
        world.round()
    world.handle([(fd, IN) for fd in descriptors(child)])
    caller.ask(b"6 * 7")
    assert [json.loads(said) for said in world.rounds(caller)] == [{"status": 0}]


@pytest.mark.timeout(60)
def test_who_hangs_up_before_all_is_read_ends_that_child_alone(world: World) -> None:
    neighbour, flood = world.start(one_call=False), world.start(one_call=False)
    neighbour.ask(b"x = 6")
    world.rounds(neighbour)
    flood.ask(b"print('x' * 9000)")
    while not select.select([flood.lifeline], [], [], 0)[0]:
        world.round()
    flood.close()  # to the zygote this is no end but an error: its word was not read
    while len(world.zygote.children) > 1:
        world.round()
    neighbour.ask(b"x * 7")
    assert [json.loads(said) for said in world.rounds(neighbour)] == [{"status": 0}]
    assert b"42\n" in os.read(neighbour.pipes.output, 9999)  # libraries of the test's own process may say that it forked


@pytest.mark.timeout(60)
@pytest.mark.parametrize("message", [b"{", b"\xff\xfe", b"[]", b'{"timeout_s": null}', b'{"timeout_s": ' + bytes(9000)])
def test_a_message_that_makes_no_sense_ends_its_child_alone(world: World, message: bytes) -> None:
    neighbour, other = world.start(one_call=False), world.start(one_call=False)
    neighbour.ask(b"x = 6")
    world.rounds(neighbour)
    other.lifeline.send(message)
    (told,) = [json.loads(said) for said in world.rounds(other)]
    assert told["ended"] == -9 and told["cause"].startswith("failed: ")
    neighbour.ask(b"x * 7")
    assert [json.loads(said) for said in world.rounds(neighbour)] == [{"status": 0}]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seconds", [b"Infinity", b"1e300"])
def test_a_limit_that_no_clock_has_ends_nothing(world: World, seconds: bytes) -> None:
    caller, neighbour = world.start(), world.start()
    caller.lifeline.send(b'{"timeout_s": ' + seconds + b"}")
    while not world.zygote.children or (child := world.zygote.children[0]).deadline is None or child._watch_at is not None:
        world.round()  # until it has nothing else to wait for
    neighbour.ask(b"6 * 7")
    assert [json.loads(said) for said in world.rounds(neighbour)] == [{"status": 0}]


def test_a_folder_that_cannot_be_opened_costs_no_descriptor() -> None:
    jail, before = Jail(("landlock",), ()), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            jail.expect("/no/such/folder")
    assert len(os.listdir("/proc/self/fd")) == before


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
    told, gone = world.call(b"1"), world.call(b"1")
    gone.lifeline.close()  # nobody hears why
    for _ in range(2):
        world.handle([(world.zygote.control.fileno(), IN)])
    assert str(error) in json.loads(told.lifeline.recv(4096))["failed"]
    for caller in (told, gone):
        caller.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not world.zygote.children


@pytest.mark.timeout(60)
def test_a_child_that_cannot_be_watched_is_told_and_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    forked: list[int] = []

    def refuse(pid: int) -> int:
        forked.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    caller = world.call(b"1")
    world.handle([(world.zygote.control.fileno(), IN)])
    assert "Too many open files" in json.loads(caller.lifeline.recv(4096))["failed"]
    caller.close()
    assert not os.path.exists(f"/proc/{forked[0]}")
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not world.zygote.children


@pytest.mark.timeout(60)
def test_what_the_warden_is_told(world: World) -> None:
    """A session's folder is looked at after each call, a folder is removed after the end, and the warden's word kills."""
    session = world.start(one_call=False)
    session.ask(b"1")
    world.rounds(session)
    told = json.loads(world.warden.recv(4096))
    if told["do"] == "watch":  # it took longer
        told = json.loads(world.warden.recv(4096))
    (child,) = world.zygote.children
    assert told == {"do": "look", "number": 1, "pid": child.pid, "bytes": 2**20, "files": 10}
    world.warden.send(b'{"over": 1}')
    assert [json.loads(said) for said in world.rounds(session)] == [{"ended": -9, "cause": "scratch"}]
    told = json.loads(world.warden.recv(4096))
    assert (told["do"], told["number"]) == ("remove", 1)
    endless = world.call(b"while True: pass")
    while not select.select([world.warden], [], [], 0)[0]:
        world.round()
    assert json.loads(world.warden.recv(4096))["do"] == "watch"
    endless.lifeline.close()


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
