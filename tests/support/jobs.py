"""Short forms of the jobs in ``tuned_examples/``, and what the end-to-end tests share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from buffer_helpers import wait_until
from cli_runs import run_here
from letters_env import Letters
from ray import cloudpickle

from rapo_rllib import RAPOConfig
from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.checks import only_config
from rapo_rllib.cli.train.experiments import ExperimentSpec, read_experiments
from rapo_rllib.milvus.lite import handle

REPOSITORY = Path(__file__).resolve().parents[2]
TUNED_EXAMPLES = REPOSITORY / "tuned_examples"

# Small steps. The form of answers is rewarded, so that there is something to learn.
SHORT: dict[str, Any] = {
    "questions_per_step": 2,
    "group_size": 4,
    "num_hybrid": 2,
    "retrieval_prob": 1.0,
    "temperature": 0.7,
    "evaluation_interval": 2,
    "evaluation_duration": 2,
    "max_response_tokens": 128,
    "max_step_tokens": 32,
    "time_budget_s": None,
    "learner_num_threads": 1,  # other tests run beside it
    "transcripts": True,
    "model": {
        "autocast_dtype": "float32",
        "gradient_checkpointing": False,
    },  # whatever this machine would choose: what is compared is exact then
    "engine": {"dtype": "float32"},
    "env_config": {"num_train": 40, "num_test": 2, "reward": {"correct": 1.0, "format": 0.5}},
}
# A task in which a model that was taught nothing, or a small one, has a chance:
# worked examples in the prompt, a line of Python.
PROMPTED: dict[str, Any] = {
    "warm_start": None,
    "expert_start_share": 0.0,  # most solutions are a call and an answer, and nothing can be begun behind the call alone
    "expert_step_share": 0.0,  # all iterations are of whole trajectories, the policy's own
    "off_policy_trajectories": 0,
    "retrieval_by_success": False,
    "env_config": {"steps": [1, 2], "tools": ["python"], "max_tool_calls": 2},
    "max_prompt_tokens": 384,
    "max_tool_calls": 2,
    "num_minibatches": 1,
    "protocol": {
        "retrieval_sentence": "Additional context follows; use it if it helps.",
        "system_prompt": "Solve the problem with Python.",
        "question_template": "{question}\nAnswer with <python>one calculation</python> and <answer>.",
        "examples": [
            [
                "Tom has 3 apples and buys 5 more. How many apples does he have?",
                "<python>3 + 5</python>\n<result>\n8\n</result>\n<answer>\\boxed{8}</answer>",
            ],
            [
                "A box holds 4 cups. Mia buys 6 boxes and breaks 3 cups. How many cups are left?",
                "<python>4 * 6 - 3</python>\n<result>\n21\n</result>\n<answer>\\boxed{21}</answer>",
            ],
        ],
    },
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``, dictionaries inside dictionaries merged as well."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def example(name: str) -> dict[str, Any]:
    """The only experiment of a file in ``tuned_examples/``."""
    experiments = yaml.safe_load((TUNED_EXAMPLES / name).read_text(encoding="utf-8"))
    (experiment,) = experiments.values()
    return experiment


def short_job(
    folder: Path, name: str = "rapo_math.yaml", iterations: int = 2, task: Mapping[str, Any] = PROMPTED, **changes: Any
) -> Path:
    """Write the shortened job of an example as ``folder/job.yaml``; ``task`` lies over its own."""
    experiment = example(name)
    buffer = {"step_trace_buffer": {"uri": str(folder / "step_traces.db"), "max_traces": 40}}
    config = merged(merged(merged(experiment["config"], SHORT), task), merged(buffer, changes))
    short = merged(experiment, {"config": config, "stop": {"training_iteration": iterations}})
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"short": short}), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Trial:
    """The folder that a trial left behind."""

    folder: Path

    @property
    def results(self) -> list[dict[str, Any]]:
        """One result per iteration."""
        return [json.loads(line) for line in (self.folder / "result.json").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        """``summary.json``."""
        loaded: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return loaded

    @property
    def last_checkpoint(self) -> Path:
        """The newest checkpoint."""
        return sorted(self.folder.glob("checkpoint_*"))[-1]

    @property
    def transcripts(self) -> list[dict[str, Any]]:
        """Every trajectory of the run."""
        files = sorted((self.folder / "transcripts").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def small_config(model: str = "smollm2-135m-instruct") -> RAPOConfig:
    """A config of one-step episodes of at most 12 tokens, without retrieval."""
    return (
        RAPOConfig()
        .environment(Letters)
        .training(
            model={"name_or_path": model, "autocast_dtype": "float32"},
            engine={"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16, "kv_cache_gib": 0.2},
            questions_per_step=4,
            group_size=4,
            num_hybrid=0,
            num_minibatches=1,
            max_prompt_tokens=192,
            max_response_tokens=12,
            lr=1e-4,
            learner_num_threads=1,
        )
    )


@dataclass(frozen=True)
class TrialHere(Trial):
    """A trial in this process."""

    returned: list[dict[str, Any]]

    @property
    def results(self) -> list[dict[str, Any]]:
        """One result per iteration."""
        return self.returned


def built_here(path: Path, **overrides: Any) -> Any:
    """The algorithm of a job's file, in this process, as Tune's trial would have it in its own.

    Args:
        path: what ``rllib train file`` would be given.
        overrides: what ``--set`` would change.
    """
    return only_config(read_experiments(path, RunOptions(overrides=list(overrides.items())))).build_algo()


def trained_here(patch: pytest.MonkeyPatch, *arguments: str) -> TrialHere:
    """The trial of ``rllib ARGUMENTS``: the command as it is, but that it trains in this process in place of Tune's."""
    found: list[TrialHere] = []

    def train(described: str, specs: list[ExperimentSpec], *_: Any) -> int:
        (spec,) = specs
        others = buffers_in_use()  # of a test before, until it is collected
        algorithm = spec.algorithm(config=cloudpickle.loads(cloudpickle.dumps(spec.config)))  # Tune's trial is another process
        try:
            results = [algorithm.train() for _ in range(int(spec.stop["training_iteration"]))]
            found.append(TrialHere(Path(algorithm.logdir), results))
        finally:
            algorithm.stop()
        assert wait_until(lambda: buffers_in_use() <= others, 60), "the algorithm was stopped"
        return 0

    patch.setattr(sys, "path", [*sys.path])  # the command adds the folder of its file to both
    patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    patch.setattr("rapo_rllib.cli.train.run.run_experiments", train)
    said = run_here(patch, *arguments)
    assert found, said
    return found[0]


def buffers_in_use() -> set[str]:
    """Lite paths that this process has open, and those of Ray's actors."""
    named = ray.util.list_named_actors(all_namespaces=True) if ray.is_initialized() else []
    return {*handle._here, *(actor["name"] for actor in named if actor["namespace"] == handle.NAMESPACE)}


def trials(folder: Path) -> list[Trial]:
    """Every trial below ``folder/results``."""
    return [Trial(file.parent) for file in sorted((folder / "results").glob("*/*/result.json"))]


def at(result: Mapping[str, Any], path: str) -> Any:
    """``result["a"]["b"]`` for ``"a/b"``; the error names the whole path."""
    value: Any = result
    for part in path.split("/"):
        assert part in value, f"{path}: no {part!r} among {sorted(value)}"
        value = value[part]
    return value
