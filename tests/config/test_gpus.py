"""Uses of GPUs that would crash, or compute on other devices than were meant, are refused; those of the recipes are not."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.rollout.vllm.engine import engine_arguments
from rapo_rllib.settings import EngineSettings
from rapo_rllib.settings.model import OWN_ARGUMENTS

SHARED = {"num_env_runners": 1, "num_gpus_per_env_runner": 0.5, "num_learners": 1, "num_gpus_per_learner": 0.5}
WHOLE = {"num_env_runners": 4, "num_gpus_per_env_runner": 1, "num_learners": 4, "num_gpus_per_learner": 1}

EVALUATED = {
    **{"num_env_runners": 1, "num_gpus_per_env_runner": 0.5, "num_learners": 1, "num_gpus_per_learner": 1},
    **{"engine": {"gpu_memory_utilization": 0.4}, "evaluation_num_env_runners": 1},
}


def of(keys: dict[str, Any]) -> RAPOConfig:
    return RAPOConfig().update_from_dict({"env": "rapo/word_problems", **keys})


@pytest.mark.parametrize(
    "keys, message",
    [
        (
            {
                **{"num_env_runners": 2, "num_gpus_per_env_runner": 0.5, "num_learners": 1, "num_gpus_per_learner": 1},
                "evaluation_config": {"num_gpus_per_env_runner": 0},
            },
            "2 engines on one GPU would take all of its memory and more; set that of each to at most 0.5",
        ),
        ({**WHOLE, "engine": {"tensor_parallel_size": 2}}, "engine.tensor_parallel_size = 2 with num_gpus_per_env_runner = 1"),
        ({**WHOLE, "num_gpus_per_env_runner": 2}, "engine.tensor_parallel_size = 1 with num_gpus_per_env_runner = 2"),
        ({**WHOLE, "num_gpus_per_learner": 2}, "num_gpus_per_learner = 2: a learner computes on one GPU"),
        (
            {**SHARED, "num_env_runners": 4, "num_learners": 4},
            "num_gpus_per_learner = 0.5 with num_learners = 4: learners that share a GPU cannot add up",
        ),
        (
            {**SHARED, "num_env_runners": 2},
            "num_gpus_per_env_runner takes 2 x 0.5 of a GPU, and num_gpus_per_learner 0.5: Ray fills one GPU after the other",
        ),
        ({**SHARED, "evaluation_num_env_runners": 1}, "num_gpus_per_env_runner takes 1 x 0.5 + 1 x 0.5 of a GPU"),
        (
            {**SHARED, "evaluation_num_env_runners": 2, "evaluation_config": {"num_gpus_per_env_runner": 0.25}},
            "num_gpus_per_env_runner takes 1 x 0.5 + 2 x 0.25 of a GPU",
        ),
        (
            {
                **{"num_gpus_per_learner": 0.3, "num_gpus_per_env_runner": 0.7, "evaluation_num_env_runners": 1},
                "engine": {"gpu_memory_utilization": 0.6},
            },
            "engine.gpu_memory_utilization = 0.6 with num_gpus_per_learner = 0.3, and engine.gpu_memory_utilization = 0.6",
        ),
        (
            {**SHARED, "num_env_runners": 0},
            "num_gpus_per_env_runner = 0.5 with num_env_runners = 0: Ray gives the main process",
        ),
        ({**WHOLE, "engine": {"sleep": True}}, "engine.sleep = True is for a GPU that engine and learner share"),
        ({**SHARED, "num_gpus_per_learner": 0, "engine": {"sleep": True}}, "engine.sleep = True is for a GPU"),
        ({"model": {"compile": True}}, "model.compile = True with num_gpus_per_learner = 0"),
        ({**WHOLE, "model": {"compile": True, "gradient_checkpointing": "selective"}}, "model.gradient_checkpointing = 'sel"),
        (
            {**SHARED, "weight_transfer": "nccl"},
            "weight_transfer = 'nccl' goes from GPU to GPU, of a process each",
        ),
        (
            {**WHOLE, "model": {"lora": {}}, "weight_transfer": "nccl"},
            "weight_transfer = 'nccl' with model.lora: vLLM's transfer",
        ),
        ({**WHOLE, "weight_transfer": "ipc"}, "weight_transfer = 'ipc' goes inside a GPU that engine and learner share"),
        ({**SHARED, "num_gpus_per_learner": 1, "weight_transfer": "ipc"}, "weight_transfer = 'ipc' goes inside a GPU"),
        ({"num_env_runners": 1, "weight_transfer": "ipc"}, "and num_gpus_per_learner to fractions of one"),
        (
            {"num_env_runners": 2, "num_gpus_per_env_runner": 0.5, "num_learners": 1, "num_gpus_per_learner": 1},
            "engine.gpu_memory_utilization = 0.85 with num_gpus_per_env_runner = 0.5: 2 engines on one GPU would take",
        ),
        (
            {**EVALUATED, "evaluation_config": {"engine": {"gpu_memory_utilization": 0.8}}},
            "evaluation_config.engine.gpu_memory_utilization = 0.8 with num_gpus_per_env_runner = 0.5: 2 engines on one",
        ),
        (
            {
                **EVALUATED,
                **{"evaluation_num_env_runners": 2, "evaluation_config": {"num_gpus_per_env_runner": 0.25}},
            },
            "engine.gpu_memory_utilization = 0.4 with num_gpus_per_env_runner = 0.5, and engine.gpu_memory_utilization = 0.4 "
            "with evaluation_config.num_gpus_per_env_runner = 0.25: 3 engines on one GPU would take all",
        ),
        (
            {"engine": {"extra": {"hf_overrides": {"text_config": {"quantization_config": {}}}}}},
            "engine.extra.hf_overrides = {'text_config'",
        ),
        ({"engine": {"extra": {"logits_processors": []}}}, "engine.extra.logits_processors = []: RAPO sets this argument"),
        ({"engine": {"extra": {"quantization": "fp8"}}}, "engine.extra.quantization = 'fp8': the learner computes with"),
        ({"engine": {"extra": {"kv_cache_dtype": "fp8_e5m2"}}}, "engine.extra.kv_cache_dtype = 'fp8_e5m2'"),
    ],
)
def test_what_would_crash_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        of(keys).validate()


@pytest.mark.parametrize(
    "keys",
    [
        {**WHOLE, "num_gpus_per_env_runner": 2, "engine": {"tensor_parallel_size": 2}},
        {"num_env_runners": 1, "engine": {"tensor_parallel_size": 2}},  # workers on a CPU
        {**SHARED, "engine": {"sleep": True}},
        {**WHOLE, "model": {"compile": True, "gradient_checkpointing": True}},
        {**SHARED, "num_env_runners": 2, "num_gpus_per_env_runner": 0.25, "engine": {"gpu_memory_utilization": 0.3}},
        {**SHARED, "weight_transfer": "ipc"},
        {**WHOLE, "weight_transfer": "nccl"},
        {**SHARED, "num_env_runners": 0, "num_learners": 0, "engine": {"sleep": True}},
        {**SHARED, "num_env_runners": 0, "num_learners": 0, "num_gpus_per_learner": 0.7},
        {
            **{"num_env_runners": 2, "num_gpus_per_env_runner": 0.5, "num_learners": 1, "num_gpus_per_learner": 1},
            "engine": {"gpu_memory_utilization": 0.5},
        },
        {**EVALUATED, "evaluation_config": {"engine": {"gpu_memory_utilization": 0.6}}},
        {**SHARED, "evaluation_num_env_runners": 1, "evaluation_config": {"num_gpus_per_env_runner": 1}},
        {**EVALUATED, "evaluation_config": {"engine": {"gpu_memory_utilization": 0.8}}, "num_gpus_per_env_runner": 1},
        {**EVALUATED, "evaluation_config": {"engine": {"gpu_memory_utilization": 0.9}, "num_gpus_per_env_runner": 1}},
        {
            "engine": {
                "extra": {
                    "kv_cache_dtype": "auto",
                    "quantization": None,
                    "hf_overrides": {"rope_theta": 1e6, "quantization_config": None},
                }
            }
        },
    ],
    ids=str,
)
def test_what_works_is_accepted(keys: dict[str, Any]) -> None:
    of(keys).validate()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, (64, 4, "auto")),
        (SHARED, (256, 32, "auto")),
        (WHOLE, (256, 32, "nccl")),
        ({**WHOLE, "num_learners": 0}, (256, 32, "auto")),
        ({**WHOLE, "evaluation_num_env_runners": 1}, (256, 32, "auto")),
        ({**WHOLE, "model": {"lora": {}}}, (256, 32, "auto")),
        (
            {**WHOLE, "engine": {"max_num_seqs": 64}, "tool_workers": 4, "weight_transfer": "object_store"},
            (64, 4, "object_store"),
        ),
    ],
    ids=str,
)
def test_defaults_follow_the_device(keys: dict[str, Any], expected: tuple[int, int, str]) -> None:
    settings = of(keys).settings
    assert (settings.engine.max_num_seqs, settings.rollout.num_tool_workers, settings.update.weight_transfer) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ("float32", False)),
        (WHOLE, ("bfloat16", True)),
        ({**WHOLE, "learner_parallelism": "fsdp"}, ("bfloat16", False)),
        ({**WHOLE, "model": {"gradient_checkpointing": "selective"}}, ("bfloat16", False)),
        ({**WHOLE, "model": {"dtype": "float32", "compile": False}}, ("float32", False)),
        ({**WHOLE, "model": {"autocast_dtype": None}}, ("float32", True)),
    ],
    ids=str,
)
def test_a_learner_on_a_gpu_has_bfloat16_weights_and_compiled_layers(keys: dict[str, Any], expected: tuple[str, bool]) -> None:
    config = of(keys)
    config.validate()
    model = config.settings.model
    assert (model.dtype, model.compile) == expected
    assert model.logits_chunk_size == (8192 if keys else 1024)


def test_every_argument_of_an_engine_is_ours_or_may_be_overridden() -> None:
    ways = {"max_model_len": 8, "on_cpu": True, "weight_transfer": "nccl"}
    made = engine_arguments("m", EngineSettings(tensor_parallel_size=2), **ways)  # type: ignore[arg-type]
    harmless = {"enable_prefix_caching", "seed", "disable_log_stats", "use_tqdm_on_load", "block_size", "kv_cache_memory_bytes"}
    assert made.keys() - OWN_ARGUMENTS == harmless
