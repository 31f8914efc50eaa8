"""TRL's side: ``GRPOTrainer`` with a reward function, generating by itself or with vLLM in its process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback

from against_trl_parts.job import GRAD_CLIP, PROMPT_TOKENS, WEIGHT_DECAY, Job, Judge, Rows
from rapo_rllib.types import Question

with warnings.catch_warnings():  # about the version of vLLM
    warnings.simplefilter("ignore")
    from trl import GRPOConfig, GRPOTrainer


class Correct:
    """The reward function. A row of the data set has the number of its question."""

    __name__ = "correct"  # TRL's metrics are named by it

    def __init__(self, judge: Judge, questions: Sequence[Question]) -> None:
        self.judge, self.questions, self.mean = judge, questions, 0.0

    def __call__(self, completion_ids: Sequence[Sequence[int]], number: Sequence[int], **kwargs: Any) -> list[float]:
        """One reward a response."""
        rewards = [self.judge.reward(self.questions[n], ids) for n, ids in zip(number, completion_ids, strict=True)]
        self.mean = sum(rewards) / len(rewards)
        return rewards


class TimedTrainer(GRPOTrainer):
    """``GRPOTrainer`` that notes seconds and tokens of its last generation."""

    correct: Correct
    rollout_s, tokens = 0.0, 0

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        began = time.perf_counter()
        found: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.rollout_s, self.tokens = time.perf_counter() - began, int(found["completion_mask"].sum())
        asked = found["prompt_ids"][0][found["prompt_mask"][0].bool()].tolist()
        ours = self.correct.judge.prompt_ids(self.correct.questions[inputs[0]["number"]])
        if asked != ours:
            raise RuntimeError(f"TRL's prompt {asked} is not ours: {ours}")
        return found


class Clock(TrainerCallback):
    """Times iterations: ``rows`` takes them."""

    def __init__(self, trainer: TimedTrainer, rows: Rows) -> None:
        self._trainer, self._rows, self._began = trainer, rows, 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Before generation."""
        self._began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Behind the optimiser step."""
        seconds, trainer = time.perf_counter() - self._began, self._trainer
        times = (seconds, trainer.rollout_s, seconds - trainer.rollout_s)
        self._rows.add(*times, trainer.tokens, trainer.tokens, trainer.correct.mean)


def _config(job: Job, folder: Path, use_vllm: bool) -> GRPOConfig:
    batch = min(job.trl_batch, job.questions * job.group_size)
    return GRPOConfig(
        str(folder / "trl"),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=job.questions * job.group_size // batch,
        num_generations=job.group_size,
        max_completion_length=job.max_tokens,
        max_steps=job.iterations,
        shuffle_dataset=False,  # the questions are in our order
        loss_type="grpo",
        scale_rewards="group",
        beta=0.0,
        temperature=1.0,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=GRAD_CLIP,
        gradient_checkpointing=False,
        bf16=job.dtype == "bfloat16",
        use_cpu=True,
        use_vllm=use_vllm,
        vllm_mode="colocate",
        vllm_max_model_length=PROMPT_TOKENS + job.max_tokens,
        seed=job.seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def train(job: Job, folder: Path, file: Path, use_vllm: bool = False) -> None:
    """Train to the end; an iteration is an optimiser step with the generation before it."""
    if use_vllm and job.dtype != "bfloat16":
        raise ValueError(
            f"TRL gives vLLM no dtype, which takes bfloat16 for a model of float32: --dtype {job.dtype} compares none"
        )
    tokenizer, questions = AutoTokenizer.from_pretrained(job.model), job.questions_in_order()
    correct = Correct(Judge(job, tokenizer), questions)
    asked = {"prompt": [correct.judge.messages(question) for question in questions], "number": list(range(len(questions)))}
    trainer = TimedTrainer(
        model=job.model,
        reward_funcs=correct,
        args=_config(job, folder, use_vllm),
        train_dataset=Dataset.from_dict(asked),
        processing_class=tokenizer,
    )
    trainer.correct = correct
    rows = Rows(job, trainer.save_model, folder)
    trainer.add_callback(Clock(trainer, rows))
    trainer.train()
    rows.write(file)
