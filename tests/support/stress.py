"""Many calls at once that end in every way, beside sessions that must not notice.

python tests/support/stress.py --calls 100000 --namespaces off
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from rapo_rllib.errors import ToolError
from rapo_rllib.sandbox import LostProcess, SandboxLimits
from rapo_rllib.sandbox.forkserver import ForkserverSandbox
from rapo_rllib.sandbox.machine import layers_in_force

LIMITS = SandboxLimits(timeout_s=60, max_output_bytes=2000)
SHORT = SandboxLimits(timeout_s=0.02)
# code, its limits, how it may end
CALLS = [
    ("1 + 1", LIMITS, {"ok"}),
    ("1 / 0", LIMITS, {"exception"}),
    ("import os\nos._exit(3)", LIMITS, {"exit"}),
    ("import os\nos.kill(os.getpid(), 9)", LIMITS, {"killed"}),
    ("open('f', 'w').write('x')", LIMITS, {"ok", "exception"}),  # without namespaces there are no files
    ("import os\nos.close(3)\nos._exit(0)", LIMITS, {"exit"}),
    ("print('x' * 9999)\nwhile True: pass", LIMITS, {"output"}),
    ("for _ in range(100): print('x' * 9000)", LIMITS, {"output"}),  # it may end just when it is given up
    ("import os\nos.write(3, bytes(60000))\nprint('x' * 9000)", LIMITS, {"ok", "output"}),
    ("print('\\ud800' * 3)", LIMITS, {"exception"}),
    ("x = bytearray(2**40)", LIMITS, {"memory"}),
    ("while True: pass", SHORT, {"timeout"}),
]


def stress(calls: int, threads: int, sessions: int, namespaces: str) -> Counter[str]:
    """How many calls ended how, and what went wrong: sessions ``lost``, outcomes ``wrong``, calls ``broken``, ``restarts``."""
    sandbox = ForkserverSandbox(layers_in_force(namespaces, False))
    sandbox.run("1", LIMITS)
    zygote = sandbox._zygote
    counted: Counter[str] = Counter()
    done, lock = threading.Event(), threading.Lock()

    def count(*names: str) -> None:
        with lock:
            counted.update(names)

    def call(number: int) -> None:
        code, limits, expected = CALLS[number % len(CALLS)]
        try:
            outcome = sandbox.run(code, limits).outcome
        except ToolError:
            outcome = "broken"
        count(*([outcome] if outcome in expected else ["wrong", f"{outcome} of {code!r}"]))

    def live() -> None:
        process = sandbox.open(LIMITS)
        try:
            for number in itertools.count():
                text = process.run("x = x + 1 if 'x' in globals() else 0\nx").output
                count("session calls" if text == b"%d\n" % number else "lost")
                if done.is_set():
                    return
        except (LostProcess, ToolError):
            count("lost")
        finally:
            process.close()

    living = [threading.Thread(target=live) for _ in range(sessions)]
    for thread in living:
        thread.start()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(call, range(calls)))
    done.set()
    for thread in living:
        thread.join()
    counted["restarts"] = int(sandbox._zygote is not zygote)
    sandbox.close()
    return counted


def main() -> None:
    """Print the counts; fail if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--namespaces", default="auto")
    given = parser.parse_args()
    started = time.monotonic()
    counted = stress(given.calls, given.threads, given.sessions, given.namespaces)
    print(dict(counted), f"{time.monotonic() - started:.0f} s")  # noqa: T201
    sys.exit(any(counted[name] for name in ("lost", "wrong", "broken", "restarts")))


if __name__ == "__main__":
    main()
