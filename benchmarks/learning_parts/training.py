"""A run: the plugin as users run it, until a budget of generated tokens is spent; a row of figures for each iteration."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from learning_parts.measures import diversity, newest_transcripts, solved_once

_SAME = (
    *("accuracy_retrieved", "accuracy_others", "accuracy_right_step_retrieved", "accuracy_right_step_others"),
    *("own_question", "shows_answer", "answers_count", "answers_copied", "count"),
)
# of retrieval, as rows of the study have it -> as the plugin logs it
EFFECT = {**dict(zip(_SAME, _SAME, strict=True)), "z_ret": "retrieval_reward", "z_on_policy": "retrieval_reward_baseline"}
ATTEMPTS = 8  # samples of a question, of pass@8


def train(run: Any) -> None:
    """Train, and write a row per iteration into ``run.file``; the last one is marked ``done``."""
    import ray

    config = run.config()
    ray.init(log_to_driver=False, logging_level="ERROR")  # that of all runs, if there is one: by RAY_ADDRESS
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
        last = {
            "accuracy": row["accuracy"] if "accuracy" in row else algo.evaluate()["env_runners"]["accuracy"],
            **({"pass_at_8": _pass_at_8(algo, run.attempted)} if run.attempted else {}),
            "done": True,
        }
        file.write(json.dumps({**totals, **last}) + "\n")
    algo.stop()
    ray.shutdown()


def _pass_at_8(algo: Any, count: int) -> float:
    """Of held-out questions, sampled as in training, without retrieval."""
    from rapo_rllib.env_runner.dispatch import sample_questions

    asked = algo.test_questions[:count]
    restore = partial(algo.bring_back_env_runners, algo.env_runner_group)
    sampled = sample_questions(algo.env_runner_group, asked, restore=restore, retrieval_prob=0.0, group_size=ATTEMPTS)
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
        **{name: sampled["retrieval"][logged] for name, logged in EFFECT.items()},
        **({"accuracy": evaluated["accuracy"]} if "accuracy" in evaluated else {}),
    }
