"""The memory of a vLLM engine: weights, keys and values, and what it computes with."""

from __future__ import annotations

from dataclasses import dataclass

from rapo_rllib.estimate.parts import Kind, Memory, Part, Parts
from rapo_rllib.estimate.shape import ModelShape, kv_bytes_per_token
from rapo_rllib.estimate.states import ITEMSIZE
from rapo_rllib.settings import EngineSettings

BATCHED_TOKENS = 2048  # that vLLM computes at once, unless engine.extra says otherwise
_FLOAT32 = 4


@dataclass(frozen=True)
class Engine:
    """The facts of an engine before it starts; bytes of one of its workers."""

    weights: int
    kv_per_token: int
    computing: int
    longest: int  # tokens of the longest trajectory

    @property
    def least(self) -> int:
        """Bytes without which vLLM does not start: weights, one step, keys and values of one longest trajectory."""
        return self.weights + self.computing + self.kv_per_token * self.longest

    def sequences(self, memory: int) -> int:
        """Trajectories of full length whose keys and values fit beside weights and computation into ``memory`` bytes."""
        return max(0, memory - self.weights - self.computing) // (self.kv_per_token * self.longest)


def engine_of(shape: ModelShape, settings: EngineSettings, max_model_len: int, on_gpu: bool) -> Engine:
    """Sizes of one worker. ``settings.dtype`` is resolved; ``max_model_len``: tokens of prompt and response."""
    workers, itemsize = settings.tensor_parallel_size, ITEMSIZE[settings.dtype]
    return Engine(
        engine_weight_bytes(shape, itemsize, on_gpu) // workers,
        kv_bytes_per_token(shape, itemsize, workers),
        computing_bytes(shape, itemsize, settings),
        settings.max_model_len or max_model_len,
    )


def engine_weight_bytes(shape: ModelShape, itemsize: int, on_gpu: bool) -> int:
    """Bytes of all weights: ``N * itemsize``; on a CPU an LM head that is tied has a copy packed for its kernel beside it.

    Source: vLLM's ``process_weights_after_loading`` of CPU linear layers; see ``rollout/vllm/worker.py: _repack_tied_head``.
    """
    packed_head = shape.head if shape.tied and not on_gpu else 0
    return (shape.parameters + packed_head) * itemsize


def computing_bytes(shape: ModelShape, itemsize: int, settings: EngineSettings) -> int:
    """Bytes of activations and logits of one engine step, about.

    ``tokens * (4 hidden + 3 intermediate) * itemsize + 3 * 4 * sequences * vocabulary``: the residual stream, attention's
    input and output, the gated MLP; float32 logits, their softmax and what the recorder of entropies makes of them.
    """
    tokens = int(settings.extra.get("max_num_batched_tokens", BATCHED_TOKENS))
    width = 4 * shape.hidden + 3 * shape.intermediate
    return tokens * width * itemsize + 3 * _FLOAT32 * settings.max_num_seqs * shape.vocabulary


def cpu_memory(engine: Engine, settings: EngineSettings) -> Memory:
    """On a host: weights, the cache that the job asks for, and what one step computes with."""
    return Memory(
        (
            Part("engine: weights", engine.weights),
            Part("engine: keys and values (engine.kv_cache_gib)", int(settings.kv_cache_gib * 2**30)),
        ),
        {"rollout": (Part("engine: one step", engine.computing, Kind.GUESS),)},
    )


def gpu_memory(engine: Engine, settings: EngineSettings, device_bytes: int | None) -> Memory:
    """On a GPU: weights, one step, and keys and values, which take what is left of its share.

    Where the GPU is not known, or has no room, keys and values are those of one longest trajectory.
    """
    share = 0 if device_bytes is None else int(settings.gpu_memory_utilization * device_bytes)
    count = engine.sequences(share)
    cache = (
        Part(
            f"engine: keys and values, room for {count} of the longest trajectories", share - engine.weights - engine.computing
        )
        if count
        else Part("engine: keys and values of one longest trajectory", engine.kv_per_token * engine.longest, Kind.BOUND)
    )
    parts: Parts = (Part("engine: weights", engine.weights), cache, Part("engine: one step", engine.computing, Kind.GUESS))
    # an engine that sleeps has none of it in an update, and takes it again before the sync
    return Memory((), {"rollout": parts, "sync": parts}) if settings.sleep else Memory(parts)
