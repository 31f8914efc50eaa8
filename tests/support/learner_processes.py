"""Several learners in plain processes, joined by gloo: what tests of learners together run on where Ray adds nothing."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import CONTEXT

TIMEOUT_S = 90.0


class LearnerProcesses:
    """Worker processes that live as long as this object; every job joins some of them in a new process group.

    Args:
        count: how many.
        folder: where process groups meet.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._folder = folder
        self._jobs = 0
        self._pipes, self._processes = [], []
        for _ in range(count):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, world_size: int, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``job(rank, world_size, *arguments)`` in ``world_size`` processes; what each returns, or the exception it raised.

        Raises:
            TimeoutError: one did not answer in time.
        """
        self._jobs += 1
        meeting = f"file://{self._folder}/{self._jobs}"
        for rank in range(world_size):
            self._pipes[rank].send_bytes(pickle.dumps((job, rank, world_size, meeting, arguments)))
        deadline = time.monotonic() + TIMEOUT_S
        answers = []
        for rank in range(world_size):
            if not self._pipes[rank].poll(max(deadline - time.monotonic(), 0)):
                raise TimeoutError(f"learner {rank} of {world_size} did not end in {TIMEOUT_S} s")
            answers.append(pickle.loads(self._pipes[rank].recv_bytes()))
        return answers

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.kill()
            process.join()


def _work(pipe: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        job, rank, world_size, meeting, arguments = pickle.loads(pipe.recv_bytes())
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
        try:
            answer = job(rank, world_size, *arguments)
        except Exception as error:
            traceback.print_exc()
            answer = error
        finally:
            dist.destroy_process_group()
        pipe.send_bytes(pickle.dumps(answer))
