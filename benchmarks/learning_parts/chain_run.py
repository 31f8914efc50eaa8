"""One run on the chains: the plugin as users run it, until a budget of generated tokens is spent."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learning_parts.measures import diversity, newest_transcripts, right
from learning_parts.methods import METHODS


@dataclass(frozen=True)
class ChainRun:
    """What one run is."""

    method: str
    seed: int
    policy: str  # folder of the base policy
    folder: str  # of everything it writes
    tokens: int = 60_000  # generated in training before it ends
    evaluation_interval: int = 4  # iterations
    lr: float = 1.5e-4
    threads: int = 1

    @property
    def file(self) -> Path:
        """Rows of figures."""
        return Path(self.folder) / f"{self.method}-{self.seed}.jsonl"


def config_of(run: ChainRun) -> Any:
    """The job."""
    from learning_parts.chains import Chains
    from learning_parts.imitation import protocol
    from rapo_rllib import RAPOConfig

    return (
        RAPOConfig()
        .environment(Chains, env_config={"seed": run.seed})
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .evaluation(evaluation_interval=run.evaluation_interval, evaluation_duration=200)
        .debugging(seed=run.seed)
        .training(
            model={"name_or_path": run.policy, "autocast_dtype": None},
            engine={"dtype": "float32", "enforce_eager": True, "max_num_seqs": 128, "kv_cache_gib": 0.5},
            protocol=asdict(protocol()),
            questions_per_step=16,
            group_size=8,
            num_hybrid=4,
            num_minibatches=2,
            max_prompt_tokens=64,
            max_response_tokens=256,
            max_step_tokens=48,
            lr=run.lr,
            learner_num_threads=run.threads,
            transcripts=True,
            step_trace_buffer={"uri": str(Path(run.folder) / f"buffer-{run.seed}.db")},
        )
        .training(**METHODS[run.method])
    )


def train(run: ChainRun) -> None:
    """Train, and write a row per iteration into ``run.file``; the last one is marked ``done``."""
    import ray

    config = config_of(run)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algo = config.build_algo()
    totals = {"tokens": 0.0, "rollout_s": 0.0, "tool_calls": 0.0, "train_s": 0.0, "iteration": 0}
    with run.file.open("w", encoding="utf-8") as file:
        while totals["tokens"] < run.tokens:
            started = time.monotonic()
            result = algo.train()
            if totals["iteration"] == 0:
                file.write(json.dumps({**totals, "accuracy": result["rapo"]["accuracy_before"]}) + "\n")
            row = _row(result, totals, time.monotonic() - started)
            trajectories = newest_transcripts(Path(algo.logdir) / "transcripts")
            row.update(diversity(trajectories), **right(trajectories))
            file.write(json.dumps(row) + "\n")
            file.flush()
        file.write(json.dumps({**totals, "accuracy": algo.evaluate()["env_runners"]["accuracy"], "done": True}) + "\n")
    algo.stop()
    ray.shutdown()


def _row(result: dict[str, Any], totals: dict[str, float], seconds: float) -> dict[str, Any]:
    """Figures of one iteration; ``totals`` are counted on."""
    sampled = result["env_runners"]
    evaluated = result.get("evaluation", {}).get("env_runners", {})
    totals["iteration"] += 1
    totals["tokens"] += sampled["tokens"]["generated"]
    totals["rollout_s"] += sampled["rollout_s"]
    totals["tool_calls"] += sum(
        tool["calls"] for tool in sampled["tools"].values() if isinstance(tool, dict) and "calls" in tool
    )
    totals["train_s"] += seconds
    return {
        **totals,
        "reward": sampled["episode_return_mean"],
        "entropy": sampled["entropy"],
        "groups_without_signal": sampled["groups_without_signal"],
        "steps": sampled["episode_len_mean"],
        "retrievals": sampled["retrieval"]["count"],
        "timers": {name: value for name, value in result["timers"].items() if isinstance(value, (int, float))},
        **({"accuracy": evaluated["accuracy"]} if "accuracy" in evaluated else {}),
    }
