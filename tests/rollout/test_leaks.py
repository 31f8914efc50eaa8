"""Thousands of trajectories leave nothing behind: memory, threads, descriptors, processes, files."""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest
from scripted import ScriptedEngine, scripted_loop

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.rollout.loop import RolloutLoop, logger
from rapo_rllib.tools import ToolLimits, ToolResult
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, StepTrace

TRACE = StepTrace("t", question="", history="", text="<echo>2</echo>", reward=1.0, source="expert")
SLEEP = "sleep 86399"  # a command that no other process on the machine runs


class Echo:
    name = "echo"
    tag = "echo"
    limits = ToolLimits()

    def run(self, input: str) -> ToolResult:
        if input == "bad":
            raise RuntimeError("the service is gone")
        return ToolResult("2")


class OneTrace:
    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        return [[RetrievedTrace(TRACE, 0.9)] for _ in queries]


def make_loop(calls: Sequence[str], tool: str | dict, **settings: int) -> RolloutLoop:
    """One call, chosen by the number in the question; then the answer."""

    def script(so_far: str) -> str:
        if "<result>" in so_far:
            return "<answer>\\boxed{2}</answer>"
        return calls[int(so_far.split("#")[1].split()[0]) % len(calls)]

    budgets = {"max_response_tokens": 5000, "max_prompt_tokens": 100, **settings}
    return scripted_loop(ScriptedEngine(script), lambda: ToolEnv({"tools": [tool]}), OneTrace(), **budgets)


def roll_out(loop: RolloutLoop, numbers: range) -> Counter[str]:
    """Rollouts of 25 questions each; how their trajectories ended."""
    ends: Counter[str] = Counter()
    for start in range(numbers.start, numbers.stop, 25):
        questions = [Question(f"q{i}", f"#{i} is 2", "2") for i in range(start, min(start + 25, numbers.stop))]
        loop.run(questions, retrieval_prob=0.5)
        ends += loop.stats.ends
        loop.engine.requests.clear()  # type: ignore[attr-defined]  # the scripted engine's own memory
    return ends


def held(folder: Path) -> dict[str, int]:
    """What this process holds, memory aside."""
    gc.collect()
    process = psutil.Process()
    return {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": len(process.children(recursive=True)),
        "files": len(list(folder.iterdir())),
    }


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """A process of its own: in pytest's, what hundreds of other tests left goes away when it likes."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_two_thousand_trajectories(elsewhere: ProcessPoolExecutor, tmp_path: Path) -> None:
    elsewhere.submit(trajectories, tmp_path, 100).result()


@pytest.mark.slow  # 12 s
def test_ten_thousand_trajectories(elsewhere: ProcessPoolExecutor, tmp_path: Path) -> None:
    elsewhere.submit(trajectories, tmp_path, 450).result()


def trajectories(tmp_path: Path, num_questions: int) -> None:
    """Twenty for each question, behind a thousand that bring to its full size what is kept."""
    tempfile.tempdir = str(tmp_path)
    logger.disabled = True  # every failed call is logged
    before = held(tmp_path)
    calls = ["<echo>2</echo>"] * 8 + ["<echo>bad</echo>", "x" * 6000]
    loop = make_loop(calls, f"{__name__}:Echo", group_size=20, num_hybrid=10)
    assert roll_out(loop, range(50)).total() == 1000  # warm
    warm, memory, objects = held(tmp_path), psutil.Process().memory_info().rss, len(gc.get_objects())
    ends = {"answer": 16 * num_questions, "error": 2 * num_questions, "length": 2 * num_questions}
    assert roll_out(loop, range(50, 50 + num_questions)) == ends
    assert held(tmp_path) == warm
    assert len(gc.get_objects()) - objects < 2.2 * num_questions  # about one for each trajectory that failed
    assert psutil.Process().memory_info().rss - memory < 48 * 2**20  # the allocator keeps up to 30 more or less
    assert len(loop.envs._idle) <= 500  # of the largest run
    loop.close()
    assert held(tmp_path) == before


@pytest.mark.parametrize(("keep_state", "namespaces"), [(False, "auto"), (True, "auto"), (True, "off")])
def test_trajectories_in_the_sandbox(elsewhere: ProcessPoolExecutor, tmp_path: Path, keep_state: bool, namespaces: str) -> None:
    elsewhere.submit(trajectories_in_the_sandbox, tmp_path, keep_state, namespaces).result()


def trajectories_in_the_sandbox(tmp_path: Path, keep_state: bool, namespaces: str) -> None:
    tempfile.tempdir = str(tmp_path)
    before = held(tmp_path)
    calls = [
        *("<python>1 + 1</python>", "<python>1 / 0</python>", "<python>open('file', 'w').write('x' * 9999)</python>"),
        "<python>while True: print('x' * 99)</python>",
        f"<python>import subprocess; subprocess.Popen({SLEEP.split()}, start_new_session=True)</python>",
        "<python>import time; time.sleep(99)</python>",
    ]
    options = {"timeout_s": 0.3, "keep_state": keep_state, "namespaces": namespaces, "preload": []}
    loop = make_loop(calls, {"name": "python", "options": options}, group_size=6, num_hybrid=3)
    assert roll_out(loop, range(12)) == {"answer": 72}
    loop.close()
    assert held(tmp_path) == before
    assert not [p for p in psutil.process_iter(["cmdline"]) if " ".join(p.info["cmdline"] or ()) == SLEEP]
