"""The weights of a ``VLLMEngine``: complete, confirmed, and without anything left of the version before.

From the beginning of a load to its confirmation the engine computes nothing. So a load that failed half-way, even if its error
was caught, cannot lead to a rollout with weights of no version.

Requests under way go on with the new weights: the scheduler is paused, the weights are swapped, and every running request
computes all its tokens so far again. So each token is sampled by one version, given the whole history as that version sees
it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rapo_rllib.errors import EngineError, WeightSyncError

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


class EngineWeights:
    """The weights of an engine: their loading, confirmation and release. ``worker.py`` has the part of the workers.

    Args:
        engine: vLLM's own.
        in_process: the model is in this process.
    """

    def __init__(self, engine: LLMEngine, in_process: bool) -> None:
        self._engine, self._in_process = engine, in_process
        self.version = 0  # of the policy's weights
        self._undefined = ""  # why the weights are not those of a policy; empty if they are
        self._asleep = False
        self._cache_asleep = False  # the weights are awake, their cache is not

    def check(self) -> None:
        """Check that the weights are those of a policy, else raise ``EngineError``."""
        if self._undefined:
            raise EngineError(f"{self._undefined}; it computes nothing before it has been given whole weights")

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace the policy's weights (checkpoint name -> tensor), or adapters, and forget every cached prefix."""
        if self._in_process:
            self._load("load_policy_weights", dict(weights), version)
            return
        # a file in memory, of which nothing is left behind
        with open(os.memfd_create("rapo-weights"), "w+b") as file:
            torch.save(dict(weights), file)
            file.flush()
            self._load("load_policy_weights_file", f"/proc/{os.getpid()}/fd/{file.fileno()}", version)

    def _load(self, method: str, weights: Any, version: int) -> None:
        self._begin(f"the engine has not finished loading weight version {version}")
        self._engine.collective_rpc(method, args=(weights,))
        self.confirm(version)

    def _begin(self, undefined: str) -> None:
        self._undefined = undefined
        self._core.pause_scheduler("keep", False)

    @property
    def _core(self) -> Any:
        """vLLM's core, for whose scheduler ``LLMEngine`` has no methods."""
        client: Any = self._engine.engine_core
        return client.engine_core

    @property
    def whole(self) -> bool:
        """Whether the weights are those of a version; False from a load's start to its confirmation, and after ``sleep``."""
        return not self._undefined

    def _check_loaded(self, version: int) -> None:
        """Check that every parameter in every worker received something, else raise ``WeightSyncError``."""
        for missing in self._engine.collective_rpc("finalize_weights"):
            if missing:
                raise WeightSyncError(
                    f"weight version {version}: {len(missing)} parameters of the engine received nothing "
                    f"({', '.join(missing[:3])}, ...)"
                )

    def sleep(self) -> None:
        """Free the memory of weights and cache until ``wake()``; the engine must be idle. Without effect on a CPU."""
        if not self._asleep:
            self._cache_asleep = False
            self._undefined = "the engine's weights were given up for sleep"
            self._engine.sleep(level=2)  # weights are not kept: new ones come before the next request
            self._asleep = True

    def wake(self) -> None:
        """Allocate the weights again, undefined until the next load; ``confirm`` then allocates the cache.

        Until then a learner on the same device uses that room for copies of the weights that it sends.
        """
        if self._asleep:
            self._engine.wake_up(["weights"])
            self._asleep, self._cache_asleep = False, True

    def call_workers(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Call a method of vLLM's own weight transfer on every worker (``weights/vllm_transfer.py``)."""
        if method == "start_weight_update":
            self._begin("the engine has not finished receiving weights")
            self._engine.collective_rpc("begin_load")
        self._engine.collective_rpc(method, kwargs=dict(arguments))

    def confirm(self, version: int) -> None:
        """Declare the loaded weights to be ``version``, and drop the prefix cache of the previous version.

        Raises:
            WeightSyncError: a parameter received nothing, or vLLM could not clear the prefix cache.
        """
        self._check_loaded(version)
        if self._cache_asleep:
            self._engine.wake_up(["kv_cache"])
            self._cache_asleep = False
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise WeightSyncError(f"weight version {version}: the prefix cache could not be cleared under running requests")
        self._engine.collective_rpc("record_version", args=(version,))
        self._core.resume_scheduler()
        self.version, self._undefined = version, ""
