"""Runs a side: our learner, TRL's trainer, or plain cross-entropy. All take the same AdamW steps."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from learner_parts.side import Options
from learner_parts.tokens import Batch
from rapo_rllib.models.activation_checkpointing import enable_checkpointing
from rapo_rllib.models.loading import load_causal_lm, load_tokenizer
from rapo_rllib.objective.advantages import outcome_advantages
from rapo_rllib.settings import ModelSettings

LEARNING_RATE, GRAD_CLIP, WEIGHT_DECAY = 1e-6, 1.0, 0.01
Go, Report = Callable[[], None], Callable[..., None]


def ours(options: Options, file: Path, go: Go, report: Report) -> None:
    """``RAPOTorchLearner.update`` on the group."""
    from ray.rllib.core import DEFAULT_MODULE_ID

    from rapo_rllib import RAPOConfig
    from rapo_rllib.batching.training_batch import TrainingBatch
    from rapo_rllib.learner.learner import RAPOTorchLearner

    batch = Batch.load(file)
    config = RAPOConfig().training(
        model={
            "name_or_path": options.model,
            "dtype": options.dtype,
            "autocast_dtype": None,
            "gradient_checkpointing": options.gradient_checkpointing,
        },
        old_logprobs="learner",
        importance_cap=None,
        max_tokens_per_micro_batch=options.trl_batch * (len(batch.prompt) + batch.responses.shape[1]),
        learner_num_threads=options.threads,
        lr=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        grad_clip=GRAD_CLIP,
    )
    config.learners(num_gpus_per_learner=int(torch.cuda.is_available()))
    learner = RAPOTorchLearner(config=config, module_spec=config.get_multi_rl_module_spec())
    learner.build()
    groups = [_trajectory_group(batch)]
    while True:
        go()
        started = time.perf_counter()
        data = TrainingBatch.from_groups(groups, config.settings.objective)
        results = learner.update(training_data=data)
        _synchronize()
        seconds = time.perf_counter() - started
        values = {name: float(results[DEFAULT_MODULE_ID][name].peek()) for name in ("total_loss", "gradient_norm")}
        tokens = int(results[DEFAULT_MODULE_ID]["num_tokens_computed"].peek())
        report(seconds, tokens, values["total_loss"], values["gradient_norm"])


def _trajectory_group(batch: Batch) -> Any:
    from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

    members = []
    for tokens, reward in zip(batch.responses.tolist(), batch.rewards.tolist(), strict=True):
        member = Trajectory("q", batch.prompt.tolist(), reward=reward, end="eos")
        member.append_policy(tokens, [0.0] * len(tokens), [0.0] * len(tokens))  # logprobs are the learner's own, no retrieval
        members.append(member)
    return TrajectoryGroup(Question("q", ""), members)


def trl(options: Options, file: Path, go: Go, report: Report) -> None:
    """``GRPOTrainer.train``; only generation is replaced, by the saved batch."""
    from datasets import Dataset
    from transformers import TrainerCallback

    with warnings.catch_warnings():  # about versions of vLLM, which is not used
        warnings.simplefilter("ignore")
        from trl import GRPOConfig, GRPOTrainer

    batch = Batch.load(file)
    group_size, response = batch.responses.shape
    advantages = outcome_advantages(batch.rewards.tolist(), True, 1e-4).float()  # 1e-4: TRL's epsilon

    class SavedBatchTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
            device = self.accelerator.device
            responses = torch.from_numpy(batch.responses).to(device)
            prompts = torch.from_numpy(batch.prompt).to(device).repeat(group_size, 1)
            return {
                "prompt_ids": prompts,
                "prompt_mask": torch.ones_like(prompts),
                "completion_ids": responses,
                "completion_mask": torch.ones_like(responses),
                "advantages": advantages.to(device),
                "num_items_in_batch": torch.tensor(responses.numel(), device=device),
            }

    class Timer(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            go()
            self.started = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            _synchronize()
            self.seconds = time.perf_counter() - self.started

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **kwargs: Any) -> None:
            if "grad_norm" in logs:
                tokens = group_size * (len(batch.prompt) + response)
                report(self.seconds, tokens, logs["loss"], logs["grad_norm"])

    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            folder,
            per_device_train_batch_size=options.trl_batch,
            gradient_accumulation_steps=group_size // options.trl_batch,
            num_generations=group_size,
            max_completion_length=response,
            max_steps=10_000,
            loss_type="grpo",
            temperature=1.0,
            beta=0.0,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=GRAD_CLIP,
            optim="adamw_torch_fused",
            gradient_checkpointing=bool(options.gradient_checkpointing),
            bf16=False,
            use_cpu=not torch.cuda.is_available(),
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = SavedBatchTrainer(
            model=load_causal_lm(_model_settings(options)),
            reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["saved"] * 64}),
            processing_class=load_tokenizer(_model_settings(options)),
            callbacks=[Timer()],
        )
        trainer.train()


def limit(options: Options, file: Path, go: Go, report: Report) -> None:
    """The model's own cross-entropy on as many tokens as ours computes, in sequences of prompt + response."""
    batch = Batch.load(file)
    group_size, response = batch.responses.shape
    length = len(batch.prompt) + response
    count = max(1, round((len(batch.prompt) + group_size * (response - 1)) / length))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_causal_lm(_model_settings(options)).to(device).train()
    model.config.use_cache = False
    enable_checkpointing(model, options.gradient_checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    prompts = torch.from_numpy(batch.prompt).repeat(count, 1)
    ids = torch.cat([prompts, torch.from_numpy(batch.responses[:count])], 1).to(device)
    while True:
        go()
        started = time.perf_counter()
        optimizer.zero_grad()
        losses = []
        for part in ids.split(2):
            loss = model(input_ids=part, labels=part).loss * len(part) / count
            loss.backward()
            losses.append(float(loss.detach()))
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        _synchronize()
        report(time.perf_counter() - started, ids.numel(), sum(losses), float(norm))


def _model_settings(options: Options) -> ModelSettings:
    return ModelSettings(name_or_path=options.model, dtype=options.dtype)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
