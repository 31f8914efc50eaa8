"""RAPO is known by name, whichever of the two is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest
from places import REPOSITORY

RLLIB_FIRST = "import ray.rllib.algorithms.registry\nimport rapo_rllib"
RAPO_FIRST = "import rapo_rllib"
LOOKED_FOR = """
import importlib.util, rapo_rllib
for name in ("ray.rllib.algorithms.registry", "gymnasium.envs.registration"):
    importlib.util.find_spec(name)
"""
WITHOUT = """
import sys
sys.path.insert(0, "benchmarks")
sys.modules |= dict.fromkeys(("gymnasium", "ray", "vllm", "pymilvus"))  # None: every import of them is an error
import gpu
print("known")
"""
CHECK = """
from ray.tune.registry import get_trainable_cls
from rapo_rllib import RAPO, RAPOConfig
assert get_trainable_cls("RAPO") is RAPO
assert get_trainable_cls("PPO").__name__ == "PPO"
assert type(RAPO.get_default_config()) is RAPOConfig
config = get_trainable_cls("RAPO").get_default_config().update_from_dict({"env": "rapo/word_problems", "credit": "gigpo"})
assert type(config) is RAPOConfig and config.credit == "gigpo"  # a trial's, of plain keys
import gymnasium
env = gymnasium.make("rapo/word_problems", env_config={"steps": [1, 1]})
question, _ = env.reset(seed=0)
assert question.endswith("?"), question
print("known")
"""


@pytest.mark.parametrize("order", [RLLIB_FIRST, RAPO_FIRST, LOOKED_FOR], ids=["rllib first", "rapo first", "looked for"])
def test_known_by_name(order: str) -> None:
    run_python(f"{order}\n{CHECK}")


def test_what_is_measured_on_a_bare_gpu_needs_torch_and_transformers_alone() -> None:
    run_python(WITHOUT)


def run_python(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "known"
