"""Publication of the learner's weights to engines, wherever they are. Flow: learner -> here -> env runner.

| engine | way |
| --- | --- |
| in the learner's process | the tensors themselves |
| in another process | Ray's object store: from the learner's machine to the engine's, never through the driver |
| on GPUs of its own | vLLM's own transfer |
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import ray
import torch

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.weights.dtensor import gathered
from rapo_rllib.weights.packing import pack_weights, unpack_weights

logger = logging.getLogger(__name__)

_LOOK_S = 0.1  # between two checks of a transfer


class EngineWeights(Protocol):
    """The weights of an engine, as far as a publication needs them."""

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace the weights, and forget every cached prefix; raises ``WeightSyncError`` if some did not arrive."""

    def confirm(self, version: int) -> None:
        """Accept the weights that the engine has already received as this version, and forget every cached prefix."""


@dataclass(frozen=True)
class Publication:
    """A version of the policy's weights, and where engines find it. Small, except for ``tensors``, which never travel."""

    version: int
    num_bytes: int = 0
    tensors: Mapping[str, torch.Tensor] | None = None  # for an engine in the same process
    packed: Any = None  # reference to packed weights in Ray's object store
    sent: bool = False  # the engine has received them already (vLLM's own transfer)

    def load_into(self, weights: EngineWeights) -> None:
        """Load the published weights into an engine."""
        if self.sent:
            weights.confirm(self.version)
        else:
            tensors = unpack_weights(ray.get(self.packed)) if self.tensors is None else self.tensors
            weights.load(tensors, self.version)


def publish(tensors: Mapping[str, torch.Tensor], version: int, dtype: torch.dtype) -> Publication:
    """Gather the weights, round them to ``dtype``, and put them into Ray's object store."""
    with gathered(tensors) as named:
        packed = pack_weights(named, dtype)
    num_bytes = sum(tensor.numel() for tensor in tensors.values()) * dtype.itemsize
    return Publication(version, num_bytes, packed=ray.put(packed))


class WeightSender:
    """The first learner's connection to engines by vLLM's own transfer; one per set of engines.

    Args:
        backend: ``nccl`` or ``ipc``.
        engines: actor handles of the env runners, by ``engine_name``, which changes with a restart; the handle does not.
        workers: tensor-parallel workers of each engine.
        weights: returns the policy's tensors; called at every transfer.
        dtype: of the engines.
        rank: of this learner.
        timeout_s: for engines to be connected, and for a version to arrive.

    Raises:
        WeightSyncError: not all engines could be connected within the time.
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
        self._failure: Exception | None = None  # an engine gave no answer, or a bad one
        self._source = PolicySource(weights, dtype)
        connect = partial(transfer, backend, self._call, len(engines), workers, self._source, rank)
        try:
            self._transfer = self._connected(connect)
        except Exception:
            for _ in self._source:  # other learners, which do not connect, wait for every tensor
                pass
            raise

    def reaches(self, engines: Mapping[str, Any]) -> bool:
        """Check whether these are the connected engines; a restarted engine counts as a new one."""
        return list(self._engines) == list(engines)

    def shares_with(self, engines: Mapping[str, Any]) -> bool:
        """Check whether one of these env runners is connected, or was before a restart."""
        return any(engine in engines.values() for engine in self._engines.values())

    def shut_down(self) -> None:
        """Free the learner's end of the connection: a communicator of NCCL holds memory of the GPU."""
        self._transfer.shutdown()

    def send(self) -> int:
        """Send one version; returns its bytes. Called on all learners.

        Raises:
            WeightSyncError: not all engines received it within the time; this connection is shut down.
        """
        try:
            with self._watched():
                self._transfer.send_weights()
        except Exception:
            self.shut_down()
            raise
        finally:
            self._source.finish()  # other learners wait for every tensor
        return sum(math.prod(meta.shape) * meta.dtype.itemsize for meta in self._source.metadata())

    def _call(self, method: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        """Call all engines and wait; raise at the first failure, as other engines may wait for the one that failed."""
        calls = zip(self._engines.values(), arguments, strict=True)
        waiting = [engine.call_engine.remote(method, own) for engine, own in calls]
        deadline = time.monotonic() + self._timeout_s
        try:
            while waiting:
                done, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
                if not done:
                    raise WeightSyncError(f"{len(waiting)} engine(s) did not answer {method} within {self._timeout_s:.0f} s")
                ray.get(done)
        except Exception as error:
            self._failure = error
            raise

    def _connected(self, connect: Callable[[], Any]) -> Any:
        """Connect on a thread. If an engine fails, abandon the thread: there is no communicator yet that could be aborted."""
        made: Future[Any] = Future()
        device = torch.accelerator.current_device_index() if torch.accelerator.is_available() else None

        def run() -> None:
            try:
                with torch.accelerator.device_index(device):  # each thread has its own
                    made.set_result(connect())
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        deadline = time.monotonic() + self._timeout_s
        while not wait([made], _LOOK_S).done and self._failure is None and time.monotonic() < deadline:
            pass
        done = made.done()
        error = made.exception() if done else self._failure
        if done and error is None:
            return made.result()
        made.add_done_callback(_shut_down)  # a connection that is made later is shut down
        told = f"were not connected within {self._timeout_s:.0f} s" if error is None else f"did not connect: {error}"
        raise WeightSyncError(f"the engines {told}") from error

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Break off a transfer if an engine fails in it or the time is over: a broadcast would wait for ever."""
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
            if self._failure is not None or time.monotonic() > deadline:
                logger.warning("the transfer of weights is broken off: %s", self._failure or "time")
                self._transfer.shutdown()  # aborts the communicator, which ends whatever waits in it
                return


def _shut_down(made: Future[Any]) -> None:
    if made.exception() is None:
        made.result().shutdown()
