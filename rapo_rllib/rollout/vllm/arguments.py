"""The arguments of vLLM's engine: a pure function, so that a machine without a GPU can test what one with GPUs gets."""

from __future__ import annotations

from typing import Any

from rapo_rllib.settings import EngineSettings

CPU_BLOCK = (
    32  # tokens; vLLM's CPU default of 128 leaves most of a short prompt outside the prefix cache: it holds full blocks only
)


def engine_arguments(
    model_path: str,
    settings: EngineSettings,
    *,
    max_model_len: int,
    seed: int = 0,
    weight_transfer: str | None = None,
    on_cpu: bool = False,
) -> dict[str, Any]:
    """Fields of ``vllm.EngineArgs``; those of ``engine.extra`` come last.

    Args:
        model_path: a folder or a Hugging Face id.
        settings: of the engine.
        max_model_len: tokens of the longest prompt and response.
        seed: of sampling.
        weight_transfer: backend of vLLM's own, if it carries the weights.
        on_cpu: whether this vLLM computes on the CPU.
    """
    arguments: dict[str, Any] = {
        "model": model_path,
        "dtype": settings.dtype,
        "max_num_seqs": settings.max_num_seqs,
        "max_model_len": max_model_len,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager,
        "enable_sleep_mode": settings.sleep,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",  # of greedy and scored tokens; those of sampled ones are our recorder's
        "logits_processors": ["rapo_rllib.rollout.vllm.recorder:TokenRecorder"],
        "worker_extension_cls": "rapo_rllib.rollout.vllm.worker.PolicyWorker",
        "generation_config": "vllm",  # a model's own sampling defaults would change the distribution
        "seed": seed,
        "scheduling_policy": "priority",  # what is scored comes before running requests; those come in turn
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if settings.tensor_parallel_size > 1:
        # Inside a placement group, where Tune puts every trial, vLLM would start its workers by Ray, which needs bundles of one
        # GPU each; an env runner's has all of them.
        arguments["distributed_executor_backend"] = "mp"
    if on_cpu:
        arguments["block_size"] = CPU_BLOCK
        arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * 2**30)
    if weight_transfer is not None:
        arguments["weight_transfer_config"] = {"backend": weight_transfer}
    return {**arguments, **settings.extra}
