"""Our side: ``RAPO`` with the preset ``grpo``, learner and engine in one process."""

from __future__ import annotations

import time
from pathlib import Path

from ray.rllib.core import DEFAULT_MODULE_ID

from against_trl_parts.job import ADVANTAGE_EPSILON, GRAD_CLIP, PROMPT_TOKENS, PROTOCOL, WEIGHT_DECAY, Job, Rows
from rapo_rllib import RAPOConfig


def config_of(job: Job) -> RAPOConfig:
    """The job as a ``RAPOConfig``."""
    config = RAPOConfig().environment("rapo/word_problems", env_config=job.env_config)
    config.training(
        preset="grpo",
        model={"name_or_path": job.model, "dtype": "float32", "autocast_dtype": job.dtype},
        engine={
            "dtype": job.dtype,
            "max_num_seqs": job.questions * job.group_size,
            "kv_cache_gib": 1.0,
            "enforce_eager": True,
        },
        protocol=PROTOCOL,
        questions_per_step=job.questions,
        group_size=job.group_size,
        num_minibatches=1,
        max_prompt_tokens=PROMPT_TOKENS,
        max_response_tokens=job.max_tokens,
        max_tokens_per_micro_batch=job.trl_batch * (PROMPT_TOKENS + job.max_tokens),
        lr=job.lr,
        weight_decay=WEIGHT_DECAY,
        grad_clip=GRAD_CLIP,
        advantage_epsilon=ADVANTAGE_EPSILON,
    )
    return config.env_runners(num_env_runners=0).learners(num_learners=0).debugging(seed=job.seed)


def train(job: Job, folder: Path, file: Path) -> None:
    """Train to the end; an iteration is a call of ``train()``."""
    algorithm = config_of(job).build_algo()
    rows, before = Rows(job, algorithm.export_policy, folder), 0
    for _ in range(job.iterations):
        began = time.perf_counter()
        result = algorithm.train()
        seconds, timers = time.perf_counter() - began, result["timers"]
        tokens = algorithm.run_summary.policy_tokens
        reward = result["env_runners"]["episode_return_mean"]
        trained = result["learners"][DEFAULT_MODULE_ID]["num_tokens"]  # without groups whose rewards are all equal
        rows.add(seconds, timers["rollout"], timers["update"], tokens - before, int(trained), reward)
        before = tokens
    rows.write(file)
    algorithm.stop()
