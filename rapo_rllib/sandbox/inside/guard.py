"""Runs another program, and kills it when the supervisor ends: what bwrap is started by.

bwrap can die with its parent by itself, but to the kernel a parent is the thread that started it, and a supervisor's threads
come and go. This program has one.
"""

from __future__ import annotations

import os

from .settings import give, take
from .start import kill_descendants, select_on
from .syscalls import prctl


def main() -> None:
    """Program. It ends as the one that it runs does, with 128 and more for signals."""
    settings = take()
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    pid = os.fork()
    if pid == 0:
        prctl(1, 9)  # PR_SET_PDEATHSIG
        os.set_inheritable(settings["alive"], False)
        os.dup2(give(settings["settings"]), 0)
        os.execv(settings["command"][0], settings["command"])
    for fd in settings["fds"]:
        os.close(fd)  # so that their ends are seen where the program holds the others
    with select_on(settings["alive"], os.pidfd_open(pid)) as poll:
        poll.poll()
    os._exit(kill_descendants(pid))
