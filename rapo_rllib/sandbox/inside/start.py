"""First process of a sandbox: enters the namespaces, forks the zygote, waits until it ends, and clears up.

    supervisor -> monitor (this) -> zygote -> children

The zygote ends with the supervisor, whose end of the control socket closes then, and with the monitor. Each child ends with
the zygote: it asked the kernel for that (PR_SET_PDEATHSIG), and in namespaces the kernel kills all processes of a namespace
whose first one ended. So nothing outlives the supervisor, even if the supervisor is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import shutil
import socket
import sys
from typing import Any

from . import namespaces, runner, zygote
from .jail import NAMESPACES, Jail, die_with_parent
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


def monitor(settings: dict[str, Any]) -> None:
    """Enter the namespaces, fork the zygote, and wait until it and its children have ended."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the kernel takes the sandbox, not the training
    in_namespaces = NAMESPACES in settings["layers"]
    if in_namespaces:
        namespaces.enter()
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: a dead zygote's children become this process's
    first = os.getpid()
    if os.fork() == 0:
        die_with_parent(0 if in_namespaces else first)  # a parent outside of the child's namespace has the number 0
        _zygote(socket.socket(fileno=settings["control"]), settings)
        os._exit(0)
    os.close(settings["control"])
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    if settings["folder"]:
        shutil.rmtree(settings["folder"])


def _zygote(control: socket.socket, settings: dict[str, Any]) -> None:
    """Prepare the zygote, report success or the error to the supervisor, and serve its requests."""
    try:
        made = _prepared(control, settings)
    except BaseException as error:
        control.send(f"{type(error).__name__}: {error}".encode())
        raise
    control.send(b"ready")
    while made.round():
        continue


def _prepared(control: socket.socket, settings: dict[str, Any]) -> zygote.Zygote:
    """Lay out the files and load the packages that children shall have, and return the zygote."""
    files = settings["files"]
    if "rlimits" in settings["layers"]:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the zygote holds two for each session
    statm, maps = (os.open(f"/proc/self/{name}", os.O_RDONLY) for name in ("statm", "maps"))  # there is no /proc later
    if NAMESPACES in settings["layers"]:
        namespaces.new_root(files["shown"], files["hidden"], files["modules"])
        found_in, working = namespaces.MODULES, namespaces.SCRATCH
    else:
        found_in, working = (os.path.join(settings["folder"], name) for name in ("modules", "working"))
        namespaces.link_modules(found_in, files["modules"])
        os.mkdir(working)
    sys.path[:] = [found_in, *files["path"]]  # nothing is imported from elsewhere
    sys.path_importer_cache.clear()
    _preload(settings["preload"])
    jail = Jail(settings["layers"], [*files["readable"], found_in], working)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of everything loaded here
    collapse(maps)
    base_bytes = int(os.pread(statm, 64, 0).split()[0]) * resource.getpagesize()
    return zygote.Zygote(control, jail, base_bytes)


def collapse(maps: int) -> None:
    """Put the memory that the zygote has filled into huge pages, because a fork copies one table entry for each page.

    With numpy and sympy loaded this halves the time of a fork and of the child's end. Only speed depends on it: if the
    kernel cannot do it (before 6.1, or no room), pages stay as they are.

    Args:
        maps: descriptor of the zygote's ``/proc/self/maps``.
    """
    with open(maps, encoding="utf-8") as lines:
        regions = [line.split() for line in lines]
    for addresses, rights, _, _, inode, *_ in regions:
        if not rights.startswith("rw") or inode != "0":  # read-only, or of a file
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if end > start:
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)


def _preload(packages: list[str]) -> None:
    # the only environment variables: libraries must not start threads, which would fail, nor reserve memory for them
    os.environ.clear()
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    for name in packages:
        importlib.import_module(name)
        exec(_WARM_UP.get(name, ""), {})
    runner.warm_up()
