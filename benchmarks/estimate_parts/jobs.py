"""Short jobs whose memory is measured: rapo_math.yaml with one iteration, two optimiser steps, full rows."""

from __future__ import annotations

from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
BASE = {
    "evaluation_interval": 0,
    "evaluate_before_training": False,
    "retrieval_prob": 0.0,
    "questions_per_step": 3,
    "num_minibatches": 2,
    "num_cpus_for_main_process": 1,
    "transcripts": False,
}
FLOAT32 = {"model.autocast_dtype": None, "engine.dtype": "float32"}
BFLOAT16 = {"model.autocast_dtype": "bfloat16", "engine.dtype": "bfloat16"}
KEEP_ALL = {"model.gradient_checkpointing": False}
JOBS: dict[str, dict] = {
    "float32": {**FLOAT32},
    "float32, all activations kept": {**FLOAT32, **KEEP_ALL},
    "bfloat16 autocast": {**BFLOAT16},
    "bfloat16 autocast, all activations kept": {**BFLOAT16, **KEEP_ALL},
    "the same, micro batches twice as large": {
        **BFLOAT16,
        **KEEP_ALL,
        "max_tokens_per_micro_batch": 1440,
        "questions_per_step": 8,
    },
    "selective": {**BFLOAT16, "model.gradient_checkpointing": "selective"},
    "bfloat16 weights, masters": {**BFLOAT16, "model.dtype": "bfloat16"},
    "LoRA": {**BFLOAT16, "model.lora": {"rank": 16, "alpha": 32}},
    "engine and learner apart": {**BFLOAT16, "num_env_runners": 1, "num_learners": 1},
    "two learners, fsdp": {**BFLOAT16, "num_env_runners": 1, "num_learners": 2, "learner_parallelism": "fsdp"},
    "retrieval": {**BFLOAT16, "retrieval_prob": 0.5},
}


def write_job(name: str, folder: Path) -> Path:
    """``job.yaml`` in ``folder``, with the scorer beside it."""
    job = yaml.safe_load((REPOSITORY / "tuned_examples" / "rapo_math.yaml").read_text(encoding="utf-8"))["rapo-math"]
    config = job["config"]
    for key, value in {**BASE, **JOBS[name]}.items():
        *above, last = key.split(".")
        place = config
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    config["env_config"] |= {"scorer": "every_length:every_length", "num_train": 64}
    config.pop("time_budget_s")
    job["stop"] = {"training_iteration": 1}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "every_length.py").write_text(Path(__file__).with_name("every_length.py").read_text(encoding="utf-8"))
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"measured": job}), encoding="utf-8")
    return path
