"""Start the sandbox's own programs: an interpreter of its own, isolated, with an empty environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_BOOT = (
    "import json, sys; sys.path.insert(0, sys.argv.pop(1)); from inside.{module} import {function}; del sys.path[0]; "
    "{function}(json.load(sys.stdin))"
)


def start(module: str, function: str, stdout: int, stderr: int | None, fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a function of ``inside/``, which has nothing from here but ``fds`` and the JSON that it waits for on its stdin.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-X",
            "utf8",
            "-c",
            _BOOT.format(module=module, function=function),
            str(Path(__file__).parent),
        ],
        env={},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(fds),
        start_new_session=True,
    )
