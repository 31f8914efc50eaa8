r"""Measures the sandbox of the python tool: what a warm call of ``1 + 1`` costs, and how many calls a second are possible.

    python benchmarks/sandbox.py --json sandbox.json
    python benchmarks/sandbox.py --quick

Every mode runs the same code with the same limits: the forkserver as it is by default (``median_ms``, ``p99_ms``,
``calls_per_s``), without user namespaces, with no packages preloaded; a session's call. Reference in the
same run: ``python -I -S -c "print(1 + 1)"`` as a plain subprocess with no limits at all, and the same with ``import numpy,
sympy`` in front, which is what a call would cost that starts from nothing. ``ratio_vs_subprocess`` compares medians with the
former, ``ratio_vs_cold_packages`` with the latter. Targets on two cores:
``median_ms`` 15 at most, ``calls_per_s`` 150 at least.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rapo_rllib.sandbox import SandboxLimits
from rapo_rllib.sandbox.forkserver import ForkserverSandbox
from rapo_rllib.sandbox.machine import layers_in_force

CODE = "1 + 1"
LIMITS = SandboxLimits(timeout_s=30)
PACKAGES = ("numpy", "sympy")
THREADS = 8
WARM_CALLS = 20


def measure(call: Callable[[], str], calls: int, parallel_calls: int) -> dict[str, float]:
    """Time ``calls`` one after another, then ``parallel_calls`` from several threads."""
    for _ in range(min(WARM_CALLS, calls)):
        check(call())
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        check(call())
        seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for text in pool.map(lambda _: call(), range(parallel_calls)):
            check(text)
    rate = parallel_calls / (time.perf_counter() - started)
    ordered = sorted(1000 * value for value in seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"median_ms": statistics.median(ordered), "p99_ms": p99, "calls_per_s": rate}


def check(text: str) -> None:
    """A call that does not answer 2 is no call."""
    if text.strip() != "2":
        sys.exit(f"a call answered {text!r}")


def forkserver(namespaces: str, preload: tuple[str, ...], calls: int) -> dict[str, Any]:
    """A forkserver of its own."""
    layers = layers_in_force(namespaces, False)
    sandbox = ForkserverSandbox(layers, preload)
    found = measure(lambda: sandbox.run(CODE, LIMITS).output.decode(), calls, 2 * calls)
    sandbox.close()
    return {**found, "layers": list(layers)}


def session(calls: int) -> dict[str, float]:
    """Calls of one session after another; there is nothing to run side by side."""
    sandbox = ForkserverSandbox(layers_in_force("auto", False), PACKAGES)
    process = sandbox.open(LIMITS)
    found = measure(lambda: process.run(CODE).output.decode(), calls, 0)
    process.close()
    sandbox.close()
    return {name: found[name] for name in ("median_ms", "p99_ms")}


def plain(code: str, calls: int) -> dict[str, float]:
    """A subprocess without limits."""
    program = f"import sys; sys.path[:] = {sys.path!r}\n{code}"

    def call() -> str:
        return subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True).stdout

    return measure(call, calls, 2 * calls)


def run_all(calls: int) -> dict[str, Any]:
    """All modes and references."""
    few = max(calls // 10, 5)
    modes: dict[str, Any] = {"forkserver": forkserver("auto", PACKAGES, calls)}
    modes["forkserver_without_namespaces"] = forkserver("off", PACKAGES, calls)
    modes["forkserver_without_packages"] = forkserver("auto", (), calls)
    modes["session"] = session(calls)
    modes["subprocess"] = plain("print(1 + 1)", few)
    modes["subprocess_cold_packages"] = plain("import numpy, sympy; print(1 + 1)", max(few // 4, 3))
    main = modes["forkserver"]
    return {
        **{name: main[name] for name in ("median_ms", "p99_ms", "calls_per_s")},
        "ratio_vs_subprocess": main["median_ms"] / modes["subprocess"]["median_ms"],
        "ratio_vs_cold_packages": main["median_ms"] / modes["subprocess_cold_packages"]["median_ms"],
        "modes": modes,
        "calls": calls,
        "threads": THREADS,
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "load_1m": os.getloadavg()[0],
            "kernel": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 calls of each mode instead of 500")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    measured = run_all(100 if arguments.quick else 500)
    print(f"{'mode':32} {'median ms':>10} {'p99 ms':>10} {'calls/s':>10}")
    for name, found in measured["modes"].items():
        rate = f"{found['calls_per_s']:10.0f}" if "calls_per_s" in found else f"{'':>10}"
        print(f"{name:32} {found['median_ms']:10.1f} {found['p99_ms']:10.1f} {rate}")
    print(f"forkserver / subprocess: {measured['ratio_vs_subprocess']:.2f}", end=", ")
    print(f"/ subprocess that imports the packages: {measured['ratio_vs_cold_packages']:.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
