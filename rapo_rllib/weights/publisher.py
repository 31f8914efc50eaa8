"""Make the learner's weights available to engines, wherever they are. Flow: learner -> here -> env runner.

| engine | way |
| --- | --- |
| in the learner's process | the tensors themselves |
| another process of the machine | anonymous shared memory, which it maps |
| another machine | Ray's object store: from the learner's machine to the engine's, never through the driver |
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
import torch

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.weights.digest import Digests, noted
from rapo_rllib.weights.dtensor import gathered
from rapo_rllib.weights.packing import pack_weights, unpack_weights
from rapo_rllib.weights.shared_memory import SharedWeights

logger = logging.getLogger(__name__)

_LOOK_S = 0.1  # between two looks at a transfer


class EngineWeights(Protocol):
    """An engine's weights, as far as they are given to it here."""

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace them, and forget every cached prefix. ``WeightSyncError`` if they did not all arrive."""

    def load_file(self, path: str, version: int) -> None:
        """Load weights from a safetensors file."""

    def confirm(self, version: int) -> None:
        """They are already there, and are of this version; forget every cached prefix."""


@dataclass(frozen=True)
class Publication:
    """A version of the policy's weights and its place for engines. Small, except for ``tensors``, which never travel."""

    version: int
    node: str  # Ray's id of the machine that ``path`` is on
    num_bytes: int = 0
    tensors: Mapping[str, torch.Tensor] | None = None  # for an engine in the same process
    path: str = ""  # a safetensors file in shared memory
    packed: Any = None  # reference to packed weights in Ray's object store
    sent: bool = False  # the engine has received them already (vLLM's own transfer)
    digests: Mapping[str, int] = field(default_factory=dict)  # of the weights, in the dtype that they were published in
    base: Mapping[str, int] = field(default_factory=dict)  # with LoRA: of the model that adapters belong to, in bfloat16

    def load_into(self, weights: EngineWeights) -> None:
        """Load them into an engine's ``weights``, by the nearest way.

        Raises:
            RuntimeError: the engine's machine is not among those that the weights were published for.
        """
        if self.sent:
            weights.confirm(self.version)
        elif self.tensors is not None:
            weights.load(self.tensors, self.version)
        elif self.path and self.node == this_node():
            weights.load_file(self.path, self.version)
        elif self.packed is not None:
            weights.load(unpack_weights(ray.get(self.packed)), self.version)
        else:
            raise RuntimeError(f"weight version {self.version} was published for machine {self.node} only")


def this_node() -> str:
    """Ray's id of this machine; without Ray, the process's own machine is the only one."""
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else "local"


class WeightPublisher:
    """Publishes versions of the weights; shared memory is made once and written anew."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype  # that is sent
        self._shared: SharedWeights | None = None

    def publish(
        self, tensors: Mapping[str, torch.Tensor], version: int, *, shared_memory: bool, object_store: bool
    ) -> Publication:
        """Round the weights to what is sent and put them where they were asked for; shards are gathered for each way."""
        path, packed = "", None
        digests: Digests = {}
        if shared_memory:
            with gathered(tensors) as named:
                if self._shared is None:
                    self._shared = SharedWeights(tensors, self._dtype)
                self._shared.write(noted(named, self._dtype, digests))
            path = self._shared.path
        if object_store:
            with gathered(tensors) as named:
                packed = ray.put(pack_weights(noted(named, self._dtype, digests), self._dtype))
        num_bytes = sum(tensor.numel() for tensor in tensors.values()) * self._dtype.itemsize
        return Publication(version, this_node(), num_bytes, path=path, packed=packed, digests=digests)


class WeightSender:
    """The first learner's connection to engines by vLLM's own transfer; one per set of engines.

    Args:
        backend: ``nccl`` or ``ipc``.
        engines: actor handles of the env runners, by what each calls itself: one that was restarted has the same handle.
        workers: tensor-parallel workers of each engine.
        weights: the policy's tensors, called at every transfer.
        dtype: of the engines.
        rank: of this learner.
        timeout_s: in which a version must have arrived.
    """

    def __init__(
        self,
        backend: str,
        engines: Mapping[str, Any],
        workers: int,
        weights: Callable[[], Mapping[str, torch.Tensor]],
        dtype: torch.dtype,
        rank: int,
        timeout_s: float = 600.0,
    ) -> None:
        from rapo_rllib.weights.vllm_transfer import PolicySource, transfer

        self._engines, self._timeout_s = dict(engines), timeout_s
        self._failed = threading.Event()  # an engine gave no answer, or a bad one
        self._source = PolicySource(weights, dtype)
        self._transfer = transfer(backend, self._call, len(engines), workers, self._source, rank)

    def reaches(self, engines: Mapping[str, Any]) -> bool:
        """Whether these are the connected engines; a restarted engine counts as a new one."""
        return list(self._engines) == list(engines)

    def send(self) -> tuple[int, Digests]:
        """Send one version; returns its bytes and digests. Called on all learners.

        Raises:
            WeightSyncError: not all engines have it within the time; this connection is unusable.
        """
        with self._watched():
            try:
                self._transfer.send_weights()
            finally:
                self._source.finish()  # other learners wait for every tensor
        num_bytes = sum(math.prod(meta.shape) * meta.dtype.itemsize for meta in self._source.metadata())
        return num_bytes, dict(self._source.digests)

    def _call(self, method: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        """Call all engines and wait; the first failure counts, as the others may wait for the one that failed."""
        calls = zip(self._engines.values(), arguments, strict=True)
        waiting = [engine.call_engine.remote(method, own) for engine, own in calls]
        deadline = time.monotonic() + self._timeout_s
        try:
            while waiting:
                done, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
                if not done:
                    raise WeightSyncError(f"{len(waiting)} engine(s) did not answer {method} within {self._timeout_s:.0f} s")
                ray.get(done)
        except Exception:
            self._failed.set()
            raise

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Inside, a transfer that an engine has left, or that takes too long, is broken off: a broadcast alone never ends."""
        over = threading.Event()
        watcher = threading.Thread(target=self._break_off_unless, args=(over,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _break_off_unless(self, over: threading.Event) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not over.wait(_LOOK_S):
            if self._failed.is_set() or time.monotonic() > deadline:
                logger.warning(
                    "the transfer of weights is broken off: %s", "an engine failed" if self._failed.is_set() else "time"
                )
                self._transfer.shutdown()  # aborts the communicator, which ends whatever waits in it
                return
