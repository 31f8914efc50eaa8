"""A job with LoRA and the keys of docs/credit.md at once: each has its effect, and a resumed run is the one that went on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from jobs import at

from rapo_rllib import RAPO, RAPOConfig
from rapo_rllib.envs.base import AnyText
from rapo_rllib.types import ExpertTrajectory, Question

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("ray_session")]


class Calls(gymnasium.Env[str, str]):
    """Pays each of two calls of Python, and ends with the answer or the fourth step; two calls are correct."""

    tool_tags = ("python",)

    def __init__(self, env_config: dict[str, Any] | None = None) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()

    @classmethod
    def questions(cls, env_config: dict[str, Any], split: str) -> list[Question]:
        """The same for both splits."""
        return [Question(id=f"{split}-{number}", text=f"How much is {number} and more?", answer="99") for number in range(2)]

    @classmethod
    def expert_trajectories(cls, env_config: dict[str, Any]) -> Iterator[ExpertTrajectory]:
        """Somebody who calls twice."""
        calls = tuple(f"<python>{number} + 5</python>\n<result>\n8\n</result>\n" for number in (3, 4))
        for question in cls.questions(env_config, "train"):
            yield ExpertTrajectory(question, (*calls, "<answer>\\boxed{99}</answer>"), 1.0, "writer")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._calls = self._steps = 0
        return (options or {})["question"].text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        called = "</python>" in action
        self._calls, self._steps = self._calls + called, self._steps + 1
        reward = 0.5 if called and self._calls <= 2 else 0.0
        if called and self._steps < 4:
            return "8", reward, False, False, {"tool": "python"}
        return "", reward, True, False, {"correct": self._calls >= 2, "end": "answer"}


def config(folder: Path, model: str) -> RAPOConfig:
    return (
        RAPOConfig()
        .environment(Calls)
        .env_runners(num_env_runners=0)
        .debugging(seed=3)
        .training(
            model={"name_or_path": model, "autocast_dtype": None, "lora": {"rank": 4, "alpha": 8}},
            # one sequence at a time and no prefix cache: what meets in a batch moves the last bits
            engine={
                "dtype": "float32",
                "enforce_eager": True,
                "max_num_seqs": 1,
                "extra": {"enable_prefix_caching": False},
                "kv_cache_gib": 0.1,
            },
            step_trace_buffer={"uri": str(folder / "steps.db")},
            questions_per_step=4,
            group_size=4,
            num_hybrid=2,
            retrieval_prob=1.0,
            num_minibatches=1,
            max_prompt_tokens=192,
            max_response_tokens=256,
            max_step_tokens=16,
            lr=1e-2,
            credit="gigpo",
            step_discount=0.9,
            advantage_baseline="kind",
            shown_steps="own",
            off_policy_trajectories=1,
            off_policy_source="replay",
            expert_start_share=0.5,
            expert_step_share=0.25,
            retrieval_by_success=True,
            evaluate_before_training=False,
            learner_num_threads=1,
        )
    )


def trained(algorithm: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """One more iteration, and the adapters after it."""
    result = algorithm.train()
    return result, {name: tensor.detach().clone() for name, tensor in algorithm.get_module().adapters.tensors().items()}


def test_resumed_it_goes_on_as_if_it_had_not_stopped(tmp_path: Path, speaking_model: str) -> None:
    algorithm = config(tmp_path, speaking_model).build_algo()
    try:
        first, before = trained(algorithm)
        checkpoint = algorithm.save_to_path(tmp_path / "checkpoint")
        expected, after = trained(algorithm)
    finally:
        algorithm.stop()
    assert at(first, "learners/default_policy/num_unaided_trajectories") > 0
    assert at(first, "env_runners/retrieval/count") > 0 and at(expected, "env_runners/off_policy/trajectories") > 0
    assert at(first, "env_runners/starts/groups") + at(expected, "env_runners/starts/groups") > 0
    assert at(expected, "env_runners/single_steps/groups") > 0
    assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())
    again = RAPO.from_checkpoint(str(checkpoint))
    try:
        found, resumed = trained(again)
    finally:
        again.stop()
    for name in ("total_loss", "num_unaided_trajectories", "num_tokens", "gradient_norm"):
        assert at(found, f"learners/default_policy/{name}") == at(expected, f"learners/default_policy/{name}"), name
    for name in (
        "episode_return_mean",
        "retrieval/retrieval_reward",
        "off_policy/trajectories",
        "starts/given",
        "starts/right_of/3",
        "single_steps/accuracy",
        "unaided/accuracy",
        "unaided/retrieval_share",
    ):
        assert at(found, f"env_runners/{name}") == at(expected, f"env_runners/{name}"), name
    assert all(torch.equal(resumed[name], tensor) for name, tensor in after.items())
