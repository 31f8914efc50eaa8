"""Runs a program for as long as somebody holds the other end of its standard input, and ends it with all its children then.

    python keeper.py COMMAND ARGUMENT ...

A process that is killed cannot end its servers. The system closes its pipes, which is what is waited for here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

_PATIENCE_S = 3.0


def _watch(program: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):  # not by sys.stdin, whose lock a thread must not hold when Python ends
        pass
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(_PATIENCE_S)
            break


def main() -> int:
    """Run it; returns how it ended."""
    try:
        program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(error, file=sys.stderr)  # noqa: T201  (whoever started this reads it)
        return 1
    threading.Thread(target=_watch, args=(program,), daemon=True).start()
    return program.wait()


if __name__ == "__main__":
    sys.exit(main())
