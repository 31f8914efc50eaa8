"""TRL's side: ``GRPOTrainer`` with a reward function, generating by itself or with vLLM in its process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from against_trl_parts.job import GRAD_CLIP, PROMPT_TOKENS, WEIGHT_DECAY, Job, Judge, Rows


def train(job: Job, folder: Path, file: Path, use_vllm: bool = False) -> None:
    """Train to the end; an iteration is an optimiser step with the generation before it."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    with warnings.catch_warnings():  # about the version of vLLM
        warnings.simplefilter("ignore")
        from trl import GRPOConfig, GRPOTrainer

    started = time.monotonic()
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    judge, questions = Judge(job, tokenizer), job.questions_in_order()
    asked = {"prompt": [Judge.messages(question) for question in questions], "number": list(range(len(questions)))}

    class Timed(GRPOTrainer):
        rollout_s, tokens, reward = 0.0, 0, 0.0  # of the present iteration

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            began = time.perf_counter()
            found: dict[str, Any] = super()._generate_and_score_completions(inputs)
            self.rollout_s, self.tokens = time.perf_counter() - began, int(found["completion_mask"].sum())
            asked = found["prompt_ids"][0][found["prompt_mask"][0].bool()].tolist()
            if asked != judge.prompt_ids(questions[inputs[0]["number"]]):
                raise RuntimeError(f"TRL's prompt is not ours: {tokenizer.decode(asked)!r}")
            return found

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seconds = time.perf_counter() - self.began
            rows.add(seconds, trainer.rollout_s, seconds - trainer.rollout_s, trainer.tokens, trainer.reward)

    def correct(completion_ids: Sequence[Sequence[int]], number: Sequence[int], **kwargs: Any) -> list[float]:
        rewards = [judge.reward(questions[n], ids) for n, ids in zip(number, completion_ids, strict=True)]
        trainer.reward = sum(rewards) / len(rewards)
        return rewards

    batch = min(job.trl_batch, job.questions * job.group_size)
    arguments = GRPOConfig(
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
    trainer: Any = Timed(
        model=job.model,
        reward_funcs=correct,
        args=arguments,
        train_dataset=Dataset.from_dict(asked),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    rows = Rows(job, trainer.save_model, folder)
    trainer.train()
    rows.write(file, started)
