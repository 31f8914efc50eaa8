"""Programs that end with this process, even if it is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_BECOME = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python alone
    signal.signal(ignored, signal.SIG_DFL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def with_parent(command: Sequence[str]) -> list[str]:
    """The command of a program that becomes ``command`` and is killed with the thread that starts it."""
    return [sys.executable, "-IS", "-c", _BECOME, str(os.getpid()), *command]
