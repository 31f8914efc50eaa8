"""Start the sandbox's own programs, find which layers this machine gives, and refuse to run without required ones."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rapo_rllib.sandbox.files import visible_files
from rapo_rllib.sandbox.inside.jail import NAMESPACES, PIDFD, REQUIRED

_FOLDER = str(Path(__file__).parent)
_BOOT = (
    "import json, sys; sys.path.insert(0, sys.argv.pop(1)); from inside.{module} import {function}; del sys.path[0]; "
    "{function}(json.loads(sys.stdin.readline()))"  # a line, not all: a process forked meanwhile may hold the pipe open
)


def start(
    module: str, function: str, told: Any, stdout: int, stderr: int | None, fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a process that runs a function of ``inside/``; it gets nothing from here but ``told`` and ``fds``.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT.format(module=module, function=function), _FOLDER],
        env={},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(fds),
        start_new_session=True,
    )
    stdin, process.stdin = process.stdin, None
    assert stdin is not None
    with contextlib.suppress(BrokenPipeError), stdin:  # it has ended already, as the caller will see
        stdin.write(json.dumps(told).encode() + b"\n")
    return process


_PROBE_S = 30.0
_FIXES = {
    "rlimits": "let the container set resource limits (setrlimit)",
    "landlock": "use a kernel from 5.13 on with Landlock switched on (lsm=landlock,... on its command line), and a container "
    "runtime of 2022 or later, whose seccomp profile allows Landlock",
    "seccomp": "use x86_64 or aarch64 and a kernel with CONFIG_SECCOMP_FILTER",
    NAMESPACES: "allow user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns, or the seccomp "
    "profile of the container), or namespaces: auto",
}


@functools.cache
def probe() -> dict[str, str | None]:
    """Try each layer, once a process, and find why the machine does not give it; None: it does.

    Raises:
        ValueError: the interpreter cannot even be started with an empty environment.
    """
    process = start("jail", "probe", visible_files()._asdict(), subprocess.PIPE, subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=_PROBE_S)
        found: dict[str, str | None] = json.loads(output)
    except (subprocess.TimeoutExpired, ValueError) as error:
        process.kill()
        said = b"" if isinstance(error, subprocess.TimeoutExpired) else errors
        raise ValueError(
            "env_config.tools: python: its sandbox cannot be tried out on this machine: "
            f"{said.decode('utf-8', 'replace').strip() or error}"
        ) from None
    return found


def layers_in_force(namespaces: str, allow_weak: bool) -> tuple[str, ...]:
    """Return the layers that the forkserver's processes will have here.

    Args:
        namespaces: ``auto`` (where allowed), ``required`` or ``off``.
        allow_weak: do without required layers that the machine does not give.

    Raises:
        ValueError: a required layer or ``pidfd_open`` is missing; the message says which, why, and what helps.
    """
    found = probe()
    if found[PIDFD] is not None:
        raise ValueError(
            f"env_config.tools: python: this machine does not give {PIDFD} ({found[PIDFD]}), by which the sandbox ends its "
            "processes: use a kernel from 5.3 on, and a container whose seccomp profile allows it"
        )
    needed = (*REQUIRED, NAMESPACES) if namespaces == "required" else REQUIRED
    for layer in () if allow_weak else needed:
        if found[layer] is not None:
            raise ValueError(
                f"env_config.tools: python: this machine does not give the layer {layer!r} ({found[layer]}): {_FIXES[layer]}; "
                "or set allow_weak_sandbox: true to run model-written code without that layer"
            )
    wanted = REQUIRED if namespaces == "off" else (*REQUIRED, NAMESPACES)
    return tuple(layer for layer in wanted if found[layer] is None)
