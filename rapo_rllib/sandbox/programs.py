"""Start the sandbox's own programs: an interpreter of its own, isolated, with an empty environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOLDER = str(Path(__file__).parent)
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside import {name}; del sys.path[0]; {name}.main()"


def start(name: str, told: Any, fds: Sequence[int], stdout: Any, stderr: Any) -> subprocess.Popen[bytes]:
    """Run ``inside/{name}.py`` with nothing from here but what it is ``told``, and ``fds``: no variables, terminal, or signals.

    Raises:
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stdin:
        json.dump(told, stdin)
        stdin.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT.format(name=name), _FOLDER],
            env={},
            cwd="/",
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds),
            start_new_session=True,
        )
