"""The learner of a tiny model, with the settings a ``RAPOConfig`` would give it, and hand-made trajectory groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from tiny_models import VOCABULARY

from rapo_rllib.algorithm.config import RAPOConfig
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.rl_module import CausalLMRLModule
from rapo_rllib.settings import EngineSettings, LoraSettings
from rapo_rllib.types import Question, RetrievedTrace, StepTrace, Trajectory, TrajectoryGroup

MODEL_KEYS = ("dtype", "autocast_dtype", "master_weights", "gradient_checkpointing", "logits_chunk_size", "lora")


class TinyConfig(RAPOConfig):
    """What the learner reads, of a tiny model in a folder."""

    def __init__(self, folder: Path, num_learners: int = 0, **settings: Any) -> None:
        super().__init__()
        model = {key: settings.pop(key) for key in MODEL_KEYS if key in settings}
        if isinstance(model.get("lora"), LoraSettings):
            model["lora"] = asdict(model["lora"])
        learner_class = settings.pop("learner_class", RAPOTorchLearner)
        self.training(
            model={"name_or_path": str(folder), "autocast_dtype": None, **model},
            max_tokens_per_micro_batch=60,
            weight_decay=0.0,
            learner_num_threads=1,
            old_logprobs="rollout",
            lr=1e-3,
            grad_clip=None,
        )
        for key, value in settings.items():
            assert hasattr(self, key), key
            setattr(self, key, value)
        self.learners(num_learners=num_learners, learner_class=learner_class)
        self.rl_module(rl_module_spec=self.get_default_rl_module_spec())

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        settings = replace(self.settings, engine=EngineSettings(dtype="bfloat16"))
        space, config = self.observation_space, {"settings": settings}
        return RLModuleSpec(CausalLMRLModule, observation_space=space, action_space=space, model_config=config)


def build(folder: Path, **settings: Any) -> RAPOTorchLearner:
    """A learner of the model in ``folder``, built."""
    config = TinyConfig(folder, **settings)
    learner = RAPOTorchLearner(config=config, module_spec=config.get_multi_rl_module_spec())
    learner.build()
    return learner


def trajectory(
    question: str, prompt: Sequence[int], parts: Sequence[tuple[str, int]], reward: float, seed: int, hybrid: bool = False
) -> Trajectory:
    """Random tokens of the given kinds: ``[("policy", 5), ("observation", 3), ("retrieved", 2), ("policy", 4)]``."""
    generator = np.random.default_rng(seed)
    result = Trajectory(question, list(prompt), hybrid=hybrid, reward=reward, end="answer")
    for kind, length in parts:
        tokens = generator.integers(3, VOCABULARY, length).tolist()
        if kind == "policy":
            logprobs, entropies = -4 + generator.random(length) / 5, 1 + generator.random(length)
            result.append_policy(tokens, logprobs.tolist(), entropies.tolist())
        elif kind == "observation":
            result.append_observation(tokens)
        else:
            result.append_retrieved(tokens, RetrievedTrace(StepTrace("t", question, "", "", 1.0), 0.9))
    return result


def trajectory_groups(count: int = 4, size: int = 3, seed: int = 0) -> list[TrajectoryGroup]:
    """Groups with signal; the last trajectory of each is hybrid, and each has an observation."""
    groups = []
    generator = np.random.default_rng(seed)
    for index in range(count):
        prompt = generator.integers(3, VOCABULARY, 4 + 3 * index).tolist()
        members = []
        for member in range(size):
            lengths = generator.integers(2, 7, 3).tolist()
            middle = [("observation", 3), *([("retrieved", 4)] if member == size - 1 else [])]
            parts = [("policy", lengths[0]), *middle, ("policy", lengths[1])]
            members.append(
                trajectory(
                    f"q{index}",
                    prompt,
                    parts,
                    float(member % 2),
                    seed=100 * seed + 10 * index + member,
                    hybrid=member == size - 1,
                )
            )
        groups.append(TrajectoryGroup(Question(f"q{index}", ""), members))
    return groups
