"""How the sandbox's own programs are started: an interpreter of its own, isolated, with an empty environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOLDER = str(Path(__file__).parent)
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside import {name}; del sys.path[0]; {name}.main()"


def command(name: str, settings: Any, folder: str = _FOLDER) -> list[str]:
    """The command line that runs ``inside/{name}.py``; ``folder`` is where it finds ``inside``."""
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT.format(name=name), folder, json.dumps(settings)]


def start(arguments: Sequence[str], fds: Sequence[int], stdout: Any, stderr: Any) -> subprocess.Popen[bytes]:
    """Start it with nothing from here but ``fds``: no variables, no terminal, no signals of this process group.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        arguments,
        env={},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(fds),
        start_new_session=True,
    )
