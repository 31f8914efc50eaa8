"""How the sandbox's own programs are started: an interpreter of its own, isolated, with an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rapo_rllib.sandbox.inside import settings

_FOLDER = str(Path(__file__).parent)
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside import {name}; del sys.path[0]; {name}.main()"


def command(name: str, folder: str = _FOLDER) -> list[str]:
    """The command line that runs ``inside/{name}.py``; ``folder`` is where it finds ``inside``."""
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT.format(name=name), folder]


def start(name: str, told: Any, fds: Sequence[int], stdout: Any, stderr: Any) -> subprocess.Popen[bytes]:
    """Start a program with nothing from here but its settings and ``fds``: no variables, no terminal, no signals of this group.

    Raises:
        OSError: it cannot be started.
    """
    stdin = settings.give(told)
    try:
        return subprocess.Popen(
            command(name),
            env={},
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds),
            start_new_session=True,
        )
    finally:
        os.close(stdin)
