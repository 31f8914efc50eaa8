"""One side of the comparison: a process that loads the model, then takes a step whenever it is told to."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Options:
    """Options that all sides have in common; ``learner.py --help`` explains them."""

    model: str
    dtype: str
    threads: int
    gradient_checkpointing: bool | str  # ours and the limit's; TRL's is on or off
    trl_batch: int


@dataclass(frozen=True)
class Step:
    """A side's report of an optimiser step."""

    seconds: float
    cpu_seconds: float  # of all threads
    num_tokens: int  # that went through the model
    loss: float
    gradient_norm: float
    peak_bytes: int  # greatest memory while it ran


class Side:
    """Runs ``body(options, batch file, go, report)`` in a process of its own.

    ``go()`` waits for the next order and is called before each step; ``report(...)`` takes what a step gave.
    """

    def __init__(self, body: Callable[..., None], options: Options, file: Path) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(body, options, file, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()  # ready

    def step(self) -> Step:
        """One step, now."""
        self._pipe.send("step")
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _answer(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            raise RuntimeError("a side of the benchmark ended before its time; its error is above") from None


def _run(body: Callable[..., None], options: Options, file: Path, pipe: Connection) -> None:
    import torch

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # progress bars and tables of trainers
    torch.set_num_threads(options.threads)
    ready, cpu_before = False, 0.0

    def go() -> None:
        nonlocal ready, cpu_before
        if not ready:
            ready = True
            pipe.send("ready")
        pipe.recv()
        reset_peak()
        cpu_before = time.process_time()

    def report(seconds: float, num_tokens: int, loss: float, gradient_norm: float) -> None:
        cpu_seconds = time.process_time() - cpu_before
        pipe.send(Step(seconds, cpu_seconds, num_tokens, loss, gradient_norm, peak_bytes()))

    body(options, file, go, report)


def reset_peak() -> None:
    """Begin to measure the greatest memory anew."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Greatest memory since :func:`reset_peak`: resident, or allocated on the GPU."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def resident_bytes() -> int:
    """Memory that is held now."""
    import torch

    return torch.cuda.memory_allocated() if torch.cuda.is_available() else psutil.Process().memory_info().rss
