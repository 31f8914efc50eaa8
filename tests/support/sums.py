"""Sums as a job, and an endpoint that solves them: canned answers over real HTTP. For the tests of off-policy agents."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from local_service import Reply, Request

SUM = re.compile(r"What is (\d+) \+ (\d+)\?")


def write_sums(folder: Path, count: int) -> Path:
    """A data set of ``count`` questions."""
    path = folder / "sums.jsonl"
    rows = [{"question": f"What is {i} + {i + 3}?", "answer": str(2 * i + 3)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_job(folder: Path, model: str, count: int, **changes: Any) -> Path:
    """A RAPO job over them with the python tool, as ``folder/job.yaml``."""
    config = {
        "env_config": {"dataset": str(write_sums(folder, count)), "tools": ["python"]},
        "model": {"name_or_path": model},
        "engine": {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "kv_cache_gib": 0.2},
        "max_prompt_tokens": 384,
        "max_response_tokens": 128,
        "max_step_tokens": 64,
        "max_tool_calls": 2,
        "evaluate_before_training": False,
        "step_trace_buffer": {"uri": str(folder / "steps.db"), "traces": None},
        "seed": 3,
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"sums": {"run": "RAPO", "env": "rapo/questions", "config": config | changes}}))
    return path


class Solver:
    """Answers as a model would that calls Python and then answers, right by every other seed.

    Args:
        before: asked first; a reply of it is given in place of the right one.
    """

    def __init__(self, before: Callable[[int], Reply | None] = lambda number: None) -> None:
        self._before = before
        self._lock = threading.Lock()
        self.count = 0
        self.asked: Counter[str] = Counter()  # first requests of trajectories, by question

    def __call__(self, request: Request) -> Reply:
        with self._lock:
            self.count += 1
            number = self.count
        if (reply := self._before(number)) is not None:
            return reply
        body = request.json
        said = "".join(message["content"] for message in body["messages"])
        a, b = map(int, SUM.findall(said)[-1])
        result = re.findall(r"<result>\n(\d+)\n</result>", said)
        seed = body.get("seed", 0)
        if not result:
            with self._lock:
                self.asked[f"sums-{a + 1}"] += 1
            text = f"<think>Way {seed % 1000}.</think><python>print({a} + {b})"
        else:
            text = f"<answer>\\boxed{{{int(result[-1]) + seed % 2}}}"
        choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": text}}
        return Reply({"choices": [choice], "usage": {"completion_tokens": 12, "prompt_tokens": len(said) // 4}})
