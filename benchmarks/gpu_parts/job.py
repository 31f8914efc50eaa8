"""The one-GPU job, where Ray and vLLM are installed: each way of weights for two iterations, and sleep for twenty."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_parts.machine import Sizes

JOB = Path(__file__).resolve().parents[2] / "tuned_examples" / "rapo_math_gpu.yaml"
WAYS = {
    "object_store": ["weight_transfer=object_store"],
    "ipc": ["weight_transfer=ipc"],
    "object_store, sleep": ["weight_transfer=object_store", "engine.sleep=true"],
}
SLEEPS = {  # an engine that wakes with wrong weights shows in a mismatch that grows
    "whole weights": ["engine.sleep=true"],
    "LoRA": ["engine.sleep=true", "model.lora={}"],
}
ITERATIONS = {"ways": 2, "sleeps": 20}
MISMATCH = "learners/default_policy/mismatch"
KEPT = ("timers/", "sync/", "time_this_iter_s")  # what begins so in a result


def measured(sizes: Sizes) -> dict[str, Any]:
    """Run each way of weights; a run that fails says how it ended."""
    return _measured(sizes, WAYS, ITERATIONS["ways"])


def sleeps(sizes: Sizes) -> dict[str, Any]:
    """Run an engine that sleeps in updates, with whole weights and with adapters."""
    return _measured(sizes, SLEEPS, ITERATIONS["sleeps"])


def _measured(sizes: Sizes, runs: dict[str, list[str]], iterations: int) -> dict[str, Any]:
    missing = [name for name in ("ray", "vllm") if importlib.util.find_spec(name) is None]
    if missing:
        return {"skipped": f"not installed: {', '.join(missing)}"}
    if sizes.device != "cuda":
        return {"skipped": "no CUDA device"}
    return {name: _run(keys, iterations) for name, keys in runs.items()}


def _run(keys: list[str], iterations: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        options = [part for key in [*keys, "evaluation_interval=null"] for part in ("--set", key)]
        command = [
            sys.executable,
            "-m",
            "rapo_rllib.cli.main",
            "train",
            "file",
            str(JOB),
            "--stop",
            json.dumps({"training_iteration": iterations}),
        ]
        command += ["--storage-path", folder, *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600 + 60 * iterations, check=False)
        except subprocess.TimeoutExpired as error:
            return {"failed": [str(error)]}
        results = sorted(Path(folder).rglob("result.json"))
        if done.returncode or not results:
            return {"failed": done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]}
        return kept([json.loads(line) for line in results[0].read_text(encoding="utf-8").splitlines()])


def kept(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Choose the last iteration's seconds and syncs, and every iteration's mismatch."""
    rows = [flat(result) for result in results]
    last = {name: value for name, value in rows[-1].items() if name.startswith(KEPT)}
    return {**last, "mismatch of each iteration": [row.get(MISMATCH) for row in rows]}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by slashes."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found.update(flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return found
