"""One run on the chains: the plugin as users run it, until a budget of generated tokens is spent."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learning_parts.measures import diversity, newest_transcripts, solved_once
from learning_parts.methods import ARMS
from learning_parts.plan import TOKENS

EFFECT = (  # of retrieval, as the plugin logs it
    *("accuracy_retrieved", "accuracy_others", "accuracy_right_step_retrieved", "accuracy_right_step_others"),
    *("own_question", "shows_answer", "answers_count", "answers_copied", "z_ret", "z_on_policy", "count"),
)
ATTEMPTS, ATTEMPTED = 8, 100  # of pass@8: samples of a question, and held-out questions


@dataclass(frozen=True)
class ChainRun:
    """What one run is."""

    arm: str
    seed: int
    calls: int  # calculations of a chain
    lr: float
    policy: str  # folder of the base policy
    folder: str  # of everything it writes
    tokens: int = TOKENS  # generated in training before it ends
    evaluation_interval: int = 4  # iterations
    threads: int = 1

    @property
    def name(self) -> str:
        """Unique in its folder."""
        return f"{self.calls}-{self.arm}-{self.lr:g}-{self.seed}"

    @property
    def file(self) -> Path:
        """What it is, then rows of figures."""
        return Path(self.folder) / f"{self.name}.jsonl"


def config_of(run: ChainRun) -> Any:
    """The job."""
    from learning_parts.chains import Chains
    from learning_parts.imitation import protocol
    from rapo_rllib import RAPOConfig

    arm = dict(ARMS[run.arm])
    buffer = {"uri": str(Path(run.folder) / f"buffer-{run.calls}-{run.seed}.db"), **arm.pop("step_trace_buffer", {})}
    return (
        RAPOConfig()
        .environment(Chains, env_config={"seed": run.seed, "lengths": [run.calls], "max_tool_calls": 5})
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
            max_response_tokens=320,
            max_step_tokens=48,
            lr=run.lr,
            learner_num_threads=run.threads,
            transcripts=True,
            step_trace_buffer=buffer,
        )
        .training(**arm)
    )


def train(run: ChainRun) -> None:
    """Train, and write a row per iteration into ``run.file``; the last one is marked ``done``."""
    import ray

    config = config_of(run)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algo = config.build_algo()
    totals = {"tokens": 0.0, "rollout_s": 0.0, "tool_calls": 0.0, "train_s": 0.0, "iteration": 0}
    with run.file.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"run": asdict(run)}) + "\n")
        while totals["tokens"] < run.tokens:
            started = time.monotonic()
            result = algo.train()
            if totals["iteration"] == 0:
                file.write(json.dumps({**totals, "accuracy": result["rapo"]["accuracy_before"]}) + "\n")
            row = _row(result, totals, time.monotonic() - started)
            row.update(diversity(newest_transcripts(Path(algo.logdir) / "transcripts")))
            file.write(json.dumps(row) + "\n")
            file.flush()
        last = {"accuracy": algo.evaluate()["env_runners"]["accuracy"], "pass_at_8": _pass_at_8(algo), "done": True}
        file.write(json.dumps({**totals, **last}) + "\n")
    algo.stop()
    ray.shutdown()


def _pass_at_8(algo: Any) -> float:
    """Of held-out questions, sampled as in training, without retrieval."""
    sampled = algo.env_runner.sample(questions=algo.test_questions[:ATTEMPTED], group_size=ATTEMPTS)
    return solved_once([[trajectory.correct for trajectory in group.trajectories] for group in sampled.groups])


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
        "groups_without_signal": sampled["groups_without_signal"] / sampled["groups"],
        "steps": sampled["episode_len_mean"],
        **{name: sampled["retrieval"][name] for name in EFFECT},
        **({"accuracy": evaluated["accuracy"]} if "accuracy" in evaluated else {}),
    }
