"""The learner's end of vLLM's own weight transfer: NCCL between GPUs, or CUDA IPC on one. Flow: learner -> here -> workers.

vLLM's trainer engine drives the exchange: it tells the engines to receive, and sends. Engines live in env runners, so they are
told by actor calls (``EnvRunnerClient``). The policy's weights are sent in the engines' dtype (``PolicySource``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, WeightSource, materialize_full_tensor
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

Weights = Callable[[], Mapping[str, torch.Tensor]]
Call = Callable[[str, Sequence[Mapping[str, Any]]], None]  # (method of every engine's workers, arguments of each engine)


class PolicySource(WeightSource):
    """The policy's weights by checkpoint name; one by one, they are gathered and rounded to the engines' dtype."""

    def __init__(self, weights: Weights, dtype: torch.dtype) -> None:
        self._weights, self._dtype = weights, dtype
        self._left: Iterator[Any] = iter(())  # whole tensors not asked for yet

    def metadata(self) -> list[ParamMeta]:
        """Return names, dtypes and whole shapes, in the order of iteration."""
        return [ParamMeta(name, self._kind(tensor), tuple(tensor.shape)) for name, tensor in self._weights().items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self._left = ((name, materialize_full_tensor(tensor.detach())) for name, tensor in self._weights().items())
        for name, tensor in self._left:
            yield name, tensor.to(self._kind(tensor)).contiguous()

    def finish(self) -> None:
        """Gather the tensors that an interrupted iteration left: the other learners wait for each of them."""
        for _ in self._left:
            pass

    def largest(self) -> int:
        """Compute the bytes of the largest tensor that is sent."""
        return max((math.prod(meta.shape) * meta.dtype.itemsize for meta in self.metadata()), default=0)

    def _kind(self, tensor: torch.Tensor) -> torch.dtype:
        return self._dtype if tensor.is_floating_point() else tensor.dtype


class EnvRunnerClient:
    """Counterpart of vLLM's ``VLLMWeightSyncClient`` for several engines, each with ``workers`` processes.

    Args:
        call: calls a method on the workers of all engines at once and waits; one mapping of arguments per engine.
        num_engines: number of engines.
        workers: tensor-parallel workers of each engine.
    """

    def __init__(self, call: Call, num_engines: int, workers: int) -> None:
        self._call, self._num_engines, self._workers = call, num_engines, workers

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the engines join the transfer's group, each with ranks of its own."""
        infos = [dict(init_info) for _ in range(self._num_engines)]
        for index, info in enumerate(infos):
            if "rank_offset" in info:
                info["rank_offset"] += index * self._workers
        self._call("init_weight_transfer_engine", [{"init_info": info} for info in infos])

    def start_weight_update(self) -> None:
        """Prepare every engine to receive."""
        self._call("start_weight_update", [{}] * self._num_engines)

    def update_weights(self, update_info: Any) -> None:
        """Let every engine receive; returns when all have done so."""
        self._call("update_weights", [{"update_info": update_info}] * self._num_engines)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Let every engine use what it received. ``weight_version`` is not used: ``Publication`` carries ours."""
        self._call("finish_weight_update", [{}] * self._num_engines)


def transfer(backend: str, call: Call, num_engines: int, workers: int, source: PolicySource, rank: int) -> Any:
    """Make vLLM's trainer engine, connected to the engines; its ``send_weights()`` sends. All learners call this.

    Args:
        backend: ``nccl`` or ``ipc``.
        call: see :class:`EnvRunnerClient`.
        num_engines: engines that receive.
        workers: tensor-parallel workers of each.
        source: the weights.
        rank: of this learner; only the first learner sends, the others help to gather shards.
    """
    client = EnvRunnerClient(call, num_engines, workers)
    info = _init_info(backend, 1 + num_engines * workers, rank, source.largest())
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def _init_info(backend: str, world_size: int, rank: int, largest: int) -> TrainerInitInfo:
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        # vLLM refuses a tensor larger than the buffer, and the embedding of a 7B model is larger than its default of 1 GiB
        size = max(IPCTrainerInitInfo.packed_buffer_size_bytes, largest)
        return IPCTrainerInitInfo(packed=True, packed_buffer_size_bytes=size, rank=rank)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.utils.network_utils import get_ip, get_open_port

    address, port = (get_ip(), get_open_port()) if rank == 0 else ("", 0)  # only the first learner opens the meeting point
    return NCCLTrainerInitInfo(address, port, world_size, rank=rank)
