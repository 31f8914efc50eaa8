"""Keys of the language model, of its engine, and of the warm start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rapo_rllib.services.credentials import check_no_secret
from rapo_rllib.settings.knobs import Knobs, knob

ALL_LINEAR = "all-linear"  # every linear layer but the LM head

# keys of vllm.EngineArgs that quantise numbers, each with the values that do not
_UNQUANTISED = {"quantization": (None,), "kv_cache_dtype": (None, "auto", "bfloat16", "float16")}
# keys of vllm.EngineArgs that are made of other keys of the job, or that recording and weight transfer depend on
OWN_ARGUMENTS = {
    *("model", "dtype", "max_num_seqs", "max_model_len", "gpu_memory_utilization", "tensor_parallel_size", "enforce_eager"),
    *("enable_sleep_mode", "logprobs_mode", "logits_processors", "worker_extension_cls", "generation_config"),
    *("distributed_executor_backend", "pipeline_parallel_size", "data_parallel_size", "scheduling_policy"),
    "weight_transfer_config",
}


def _check_targets(name: str, value: Any) -> None:
    named = isinstance(value, tuple) and bool(value) and all(isinstance(target, str) for target in value)
    if value != ALL_LINEAR and not named:
        raise ValueError(
            f"{name} = {value!r}: must be {ALL_LINEAR!r}, or a list of linear layers' names such as [q_proj, v_proj]"
        )


def _check_extra(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} = {value!r}: must be a mapping")
    check_no_secret(value, name, "set HF_TOKEN in the environment of every machine")
    if taken := sorted(OWN_ARGUMENTS & value.keys()):
        raise ValueError(
            f"{name}.{taken[0]} = {value[taken[0]]!r}: RAPO sets this argument, of the key of `engine` with that name or of "
            "what it needs itself; leave it out of extra"
        )
    quantised = [key for key, plain in _UNQUANTISED.items() if value.get(key) not in plain]
    if "quantization_config" in repr(value.get("hf_overrides")).replace("quantization_config': None", ""):
        quantised.append("hf_overrides")
    if quantised:
        raise ValueError(
            f"{name}.{quantised[0]} = {value[quantised[0]]!r}: the learner computes with unquantised numbers, and the "
            "effect of the difference is not measured; leave it out"
        )


@dataclass(frozen=True)
class LoraSettings(Knobs):
    """Low-rank adapters that train in place of the model's own weights, by ``peft``."""

    where: ClassVar[str] = "model.lora."

    rank: int = knob(16, "rank of each adapter", at_least=1)
    alpha: float = knob(32, "scale: the adapter's output is multiplied by alpha / rank", above=0)
    target_modules: str | tuple[str, ...] = knob(
        ALL_LINEAR,
        "`all-linear`: every linear layer but the LM head; or a list of names: `[q_proj, v_proj]`",
        check=_check_targets,
    )

    @property
    def scaling(self) -> float:
        """Factor of the adapter's output."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class ModelSettings(Knobs):
    """The language model that is trained, and its precision."""

    where: ClassVar[str] = "model."

    name_or_path: str = knob("smollm2-135m-instruct", "a folder, a Hugging Face id, or a packaged short name")
    dtype: Literal["float32", "bfloat16", "float64"] = knob(
        "float32",
        "precision of the trained weights; default on GPUs: bfloat16, unless `autocast_dtype` is float32 or null",
    )
    autocast_dtype: Literal["auto", "float32", "bfloat16"] | None = knob(
        "auto", "precision of the learner's matrix products; `auto`: bfloat16 if the hardware has it; None: that of the weights"
    )
    master_weights: Literal["float32"] | None = knob(
        "float32", "for a bfloat16 model: the optimiser updates float32 copies; None: the bfloat16 weights"
    )
    trust_remote_code: bool = knob(False, "run code that comes with the model's files")
    gradient_checkpointing: bool | Literal["selective"] = knob(
        False, "recompute activations in the backward pass; `selective`: keep matrix products"
    )
    compile: bool = knob(
        False,
        "compile the decoder layers (torch.compile, CUDA only): faster steps after minutes at the start; default on GPUs: "
        "true, but not with `gradient_checkpointing: selective` or `learner_parallelism: fsdp`",
    )
    logits_chunk_size: int = knob(1024, "tokens whose logits the learner computes at a time; default on GPUs: 8192", at_least=1)
    lora: LoraSettings | None = knob(None, "adapters that train instead of the weights; None: all weights train")


@dataclass(frozen=True)
class EngineSettings(Knobs):
    """The vLLM engine of one env runner."""

    where: ClassVar[str] = "engine."

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = knob(
        "auto", "precision of the engine; `auto`: bfloat16 if the hardware has it, else float32"
    )
    max_num_seqs: int = knob(64, "most sequences generated at a time; default on GPUs: 256", at_least=1)
    gpu_memory_utilization: float = knob(0.85, "share of the GPU's memory for the engine; CUDA only", at_least=1e-3, at_most=1)
    kv_cache_gib: float = knob(1.0, "memory of the KV cache; CPU only", at_least=1e-3)
    tensor_parallel_size: int = knob(1, "GPUs that share one model, each with its own worker process", at_least=1)
    enforce_eager: bool = knob(False, "disable CUDA graphs and compilation: a faster start, slower tokens")
    sleep: bool = knob(False, "free the GPU's memory while the learner updates, for one GPU that both share; CUDA only")
    extra: dict = knob(dict, "further arguments of `vllm.EngineArgs`", check=_check_extra)


@dataclass(frozen=True)
class WarmStartSettings(Knobs):
    """Fine-tuning on worked steps before the first iteration, so that the policy can use its tools and retrieved steps."""

    where: ClassVar[str] = "warm_start."

    traces: str = knob("expert", "whose trajectories: `expert` (the environment's), or a .jsonl[.gz] file of them")
    env_config: dict = knob(dict, "keys that override the job's own, for example to give the expert easier questions")
    num_trajectories: int = knob(
        1000, "most trajectories; taken are the first that are correct and fit the budgets", at_least=1
    )
    shown_share: float = knob(
        0.5,
        "probability that a step trace is shown before a step, as retrieval will do; 0 without retrieval",
        at_least=0,
        at_most=1,
    )
    fitting_share: float = knob(
        0.8, "share of these that show the very next step; the others are of another question", at_least=0, at_most=1
    )
    num_epochs: int = knob(1, "passes over all trajectories", at_least=1)
    batch_size: int = knob(16, "trajectories of an optimiser step", at_least=1)
    lr: float = knob(1e-4, "peak learning rate, after a short warm-up; it falls to 0", above=0)
    folder: str | None = knob(None, "folder for the resulting models, shared by all machines of a cluster; None: the cache")
