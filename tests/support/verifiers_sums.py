"""A small environment of `verifiers`: sums, with a tool. It runs in that package's own interpreter."""

from __future__ import annotations

import sys
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.harnesses.null import NullHarness


class SumData(vf.TaskData):
    answer: str


class Adding(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class SumTask(vf.Task[SumData]):
    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        return [Adding(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 0.5 * (self.data.answer in trace.last_reply)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> list[SumTask]:
        return [SumTask(SumData(prompt=f"What is {n} + 5?", answer=str(n + 5)), self.config.task) for n in range(3, 7)]


class SumHarness(NullHarness):
    """The usual loop, run by this interpreter: `uv` would fetch one for it."""

    async def setup(self, runtime: Any) -> None:
        async def program(script: str, *others: Any, **options: Any) -> list[str]:
            await runtime.write("program.py", script.encode())
            return [sys.executable, "program.py"]

        runtime.prepare_uv_script = program


__all__ = ["SumHarness", "Sums"]

if __name__ == "__main__":
    Adding.run()
