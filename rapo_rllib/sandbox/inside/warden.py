"""Watches and removes the scratch folders on disk, in a process of its own: no call waits for another one's thousands of files.

zygote --(watch, look, remove; by number)--> warden --(over)--> zygote, which kills
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from . import scratch

WATCH_S = 0.01  # between two looks at a running call's folder; calls that are shorter are not looked at
_REMOVE_S = 0.002  # of removing files, between two looks at what else there is to do
_SHARE = 10  # a round of looks is followed by a pause that is so many times as long


class Warden:
    """The monitor's side.

    Args:
        folder: where scratch folders are, each named by its child's number.
        link: to the zygote.
    """

    def __init__(self, folder: str, link: socket.socket) -> None:
        self.link = link
        self._folder = folder
        self._watched: dict[int, dict[str, Any]] = {}
        self._next = 0.0  # round of looks
        self._removals: deque[Iterator[None]] = deque()

    def patience_s(self) -> float | None:
        """For how long there is nothing to do; None: until the zygote says something."""
        if self._removals:
            return 0.0
        return max(self._next - time.monotonic(), 0.0) if self._watched else None

    def work(self) -> None:
        """A small piece of what there is to do."""
        self._hear()
        started = time.monotonic()
        if self._watched and started >= self._next:
            for order in list(self._watched.values()):
                self._look(order)
            ended = time.monotonic()
            self._next = max(started + WATCH_S, ended + _SHARE * (ended - started))
        if self._removals:
            self._remove()

    def _hear(self) -> None:
        while message := heard(self.link):
            order = json.loads(message)
            self._watched.pop(order["number"], None)
            if order["do"] == "watch":
                self._watched[order["number"]] = order
            elif order["do"] == "look":
                self._look(order)
            else:
                self._removals.append(scratch.removal(self._path(order)))

    def _path(self, order: dict[str, Any]) -> str:
        return os.path.join(self._folder, str(order["number"]))

    def _look(self, order: dict[str, Any]) -> None:
        try:
            over = scratch.is_over(self._path(order), order["pid"], order["bytes"], order["files"])
        except OSError as error:  # what cannot be looked at is as good as full
            print(f"cannot look at a scratch folder: {error}", file=sys.stderr)  # noqa: T201
            over = True
        if over:
            self._watched.pop(order["number"], None)
            try:
                self.link.send(json.dumps({"over": order["number"]}).encode())
            except OSError:  # the zygote is gone, and what it started with it
                return

    def _remove(self) -> None:
        until = time.monotonic() + _REMOVE_S
        try:
            while time.monotonic() < until:
                next(self._removals[0])
        except StopIteration:
            self._removals.popleft()
        except OSError as error:  # whoever started all this removes what is left at the end
            print(f"cannot remove a scratch folder: {error}", file=sys.stderr)  # noqa: T201
            self._removals.popleft()


class Orders:
    """The zygote's side. It never waits: what the warden cannot take now is kept."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.waiting: deque[bytes] = deque()

    def give(self, do: str, number: int, **about: int) -> None:
        """Tell it to ``watch`` or ``look`` at a folder once, or to ``remove`` it; each ends what it did with the folder."""
        self.waiting.append(json.dumps({"do": do, "number": number, **about}).encode())
        self.flush()

    def flush(self) -> None:
        """Send what can be sent."""
        while self.waiting:
            try:
                self.link.send(self.waiting[0], socket.MSG_DONTWAIT)
            except OSError:  # there is no room, or no memory, now
                return
            self.waiting.popleft()

    def over(self) -> int | None:
        """The number of a child that holds too much, if that was said."""
        message = heard(self.link)
        found: dict[str, int] = json.loads(message) if message else {}
        return found.get("over")


def heard(link: socket.socket) -> bytes | None:
    """The next message, without waiting: None if there is none, empty at the end.

    The end is an error to a socket if the other side closed its own with something unread in it.
    """
    try:
        return link.recv(4096, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""
