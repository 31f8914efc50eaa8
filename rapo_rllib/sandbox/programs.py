"""Start the sandbox's own programs: an interpreter of its own, isolated, with an empty environment."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOLDER = str(Path(__file__).parent)
_BOOT = (
    "import json, sys; sys.path.insert(0, sys.argv.pop(1)); from inside.{module} import {function}; del sys.path[0]; "
    "{function}(json.loads(sys.stdin.readline()))"  # its end may be held open by a process that was forked meanwhile
)


def start(
    module: str, function: str, told: Any, stdout: int, stderr: int | None, fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Run a function of ``inside/`` with nothing from here but what it is ``told``, and ``fds``.

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
    with contextlib.suppress(BrokenPipeError), stdin:  # it has ended, as will be seen
        stdin.write(json.dumps(told).encode() + b"\n")
    return process
