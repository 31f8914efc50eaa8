"""First process of a sandbox: enters the namespaces, forks the zygote, waits until either side ends, and clears up.

    supervisor -> monitor (this; knows only the pipe ``alive`` and the zygote) -> zygote -> children

The zygote dies with the monitor, and each child with the zygote: by its own wish (PR_SET_PDEATHSIG), and, in namespaces,
because the kernel kills all processes of a namespace whose first one ended. So nothing outlives the supervisor, even if it is
killed: the pipe's end is enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import select
import signal
import socket
from typing import Any

from . import modules, namespaces, runner, scratch, warden, zygote
from .jail import NAMESPACES, Jail, die_with_parent
from .settings import take
from .syscalls import libc, prctl

_HUGE = 2 * 2**20
_MADV_COLLAPSE = 25
# Packages import part of themselves at first use; done once here instead of in every child.
_WARM_UP = {
    "numpy": "import numpy, numpy.random, numpy.linalg\nnumpy.linalg.det(numpy.eye(2)), repr(numpy.ones(2))",
    "sympy": """
from sympy import *
x, y = symbols("x y")
str([solve(x**3 - 2), solve([x + y - 1, x - y]), integrate(sin(x) ** 2, (x, 0, pi)), diff(x**x), limit(sin(x) / x, x, 0)])
str([simplify(sin(x) ** 2 + cos(x) ** 2), factor(x**2 - 1), expand((x + 1) ** 2), factorint(60)])
str([series(exp(x), x, 0, 3), summation(x, (x, 1, 9)), nsolve(x**2 - 2, 1)])
str([Matrix([[1, 2], [3, 4]]).inv(), sympify("1/3"), latex(x / y), Rational(1, 3).evalf()])
""",
}


def main() -> None:
    """Program of the monitor."""
    settings = take()
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the kernel takes the sandbox, not the training
    in_namespaces = NAMESPACES in settings["layers"]
    if in_namespaces:
        namespaces.enter()
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: a dead zygote's children become this process's
    monitor = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        if not in_namespaces:
            die_with_parent(monitor)
        _zygote(settings, None if in_namespaces else warden.Orders(theirs))
        os._exit(0)
    theirs.close()
    os.close(settings["control"])
    _watch((settings["alive"], os.pidfd_open(pid)), warden.Warden(settings["folder"], ours))
    kill_descendants(pid)
    if settings["folder"]:
        for name in os.listdir(settings["folder"]):
            for _ in scratch.removal(os.path.join(settings["folder"], name)):
                continue
        os.rmdir(settings["folder"])


def _watch(ends: tuple[int, int], work: warden.Warden) -> None:
    """Look after the scratch folders, until there is something to read from one of ``ends``."""
    with select_on(*ends, work.link.fileno()) as poll:
        while not {fd for fd, _ in poll.poll(work.patience_s())} & set(ends):
            work.work()


def select_on(*fds: int) -> select.epoll:
    """An epoll that waits for input, or the end, of any of ``fds``."""
    poll = select.epoll()
    for fd in fds:
        poll.register(fd, select.EPOLLIN)
    return poll


def kill_descendants(pid: int) -> None:
    """Until none is left: they are all killed by the end of ``pid``, and are reaped here."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _zygote(settings: dict[str, Any], orders: warden.Orders | None) -> None:
    """Show and load what children shall have, report, and serve."""
    files = settings["files"]
    control = socket.socket(fileno=settings["control"])
    if "rlimits" in settings["layers"]:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # three for each session
    statm, maps = (os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("statm", "maps"))  # there is no /proc later
    os.close(settings["alive"])
    if NAMESPACES in settings["layers"]:
        prctl(1, 9)  # PR_SET_PDEATHSIG; its parent is outside its namespace, and has no number to compare
        namespaces.new_root(files["shown"], files["hidden"], files["modules"])
        found_in = modules.FOLDER
    else:
        found_in = os.path.join(settings["folder"], "modules")
        modules.link(found_in, files["modules"])
    modules.find_in(found_in, files["path"])
    jail = Jail(settings["layers"], [*files["readable"], found_in])
    _preload(settings["preload"])
    jail.prepare()
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of everything loaded here
    collapse(maps)
    control.send(b'{"ready": true}')
    zygote.Zygote(control, jail, settings["folder"], statm, orders).serve()


def collapse(maps: int) -> None:
    """Put the memory that the zygote has filled into huge pages, because a fork copies one entry for each page.

    With numpy and sympy loaded this halves the time of a fork and of the child's end. Only speed depends on it: where the
    kernel cannot do it (before 6.1, or no room), pages stay as they are.

    Args:
        maps: descriptor of its own ``/proc/self/maps``.
    """
    with open(maps, encoding="utf-8") as lines:
        regions = [line.split() for line in lines]
    for addresses, rights, _, _, inode, *_ in regions:
        if not rights.startswith("rw") or inode != "0":  # what belongs to a file
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if end > start:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)


def _preload(packages: list[str]) -> None:
    # the only environment variables: libraries shall start no threads, which they could not, nor reserve memory for them
    os.environ.clear()
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    for name in packages:
        importlib.import_module(name)
        exec(_WARM_UP.get(name, ""), {})
    runner.warm_up()
