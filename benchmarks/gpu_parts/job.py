"""The one-GPU job for two iterations, where Ray and vLLM are installed: with an engine that sleeps in updates, and without."""

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
RUNS = {
    "object_store": ["weight_transfer=object_store"],
    "ipc": ["weight_transfer=ipc"],
    "object_store, sleep": ["weight_transfer=object_store", "engine.sleep=true"],
}
TIMERS = ("timers/", "weights/")  # what begins so in a result is kept


def measured(sizes: Sizes) -> dict[str, Any]:
    """Results of the second iteration; a run that fails says how it ended."""
    missing = [name for name in ("ray", "vllm") if importlib.util.find_spec(name) is None]
    if missing:
        return {"skipped": f"not installed: {', '.join(missing)}"}
    if sizes.device != "cuda":
        return {"skipped": "no CUDA device"}
    return {name: _run(keys) for name, keys in RUNS.items()}


def _run(keys: list[str]) -> dict[str, Any]:
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
            '{"training_iteration": 2}',
        ]
        done = subprocess.run(
            [*command, "--storage-path", folder, *options], capture_output=True, text=True, timeout=900, check=False
        )
        results = sorted(Path(folder).rglob("result.json"))
        if done.returncode or not results:
            return {"failed": done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]}
        last = flat(json.loads(results[0].read_text(encoding="utf-8").splitlines()[-1]))
        return {name: value for name, value in last.items() if name.startswith(TIMERS) or name == "time_this_iter_s"}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by slashes."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found.update(flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return found
