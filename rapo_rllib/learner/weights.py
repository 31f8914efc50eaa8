"""The learner's weights for engines, and as a Hugging Face folder.

Flow: ``weights/sync.py`` and ``checkpoints/algorithm.py`` -> here, on all learners -> ``weights/publisher.py``, folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapo_rllib.learner.rl_module import CausalLMRLModule
from rapo_rllib.weights.dtensor import gathered
from rapo_rllib.weights.publisher import Publication, WeightSender, publish


class LearnerWeights:
    """Called on all learners, since sharded weights are gathered from all; the first one's answer counts.

    Args:
        policy: whose weights.
        index: of this learner.
        tensor_parallel_size: workers of an engine.
        version: of the weights now.
    """

    def __init__(self, policy: CausalLMRLModule, index: int, tensor_parallel_size: int, version: Callable[[], int]) -> None:
        self._policy, self._index, self._workers, self._version = policy, index, tensor_parallel_size, version
        self._sender: WeightSender | None = None  # of vLLM's own transfer

    def publish(self) -> Publication | None:
        """Make the current weights available to engines in other processes; None but on the first learner."""
        tensors = self._policy.engine_tensors()
        if not self._index:
            return publish(tensors, self._version(), self._policy.sent_dtype)
        with gathered(tensors):
            return None  # the first learner's are whole with this one's shards

    def publish_local(self) -> Publication:
        """Return current weights themselves, for an engine in this process: there is one learner, which holds all of them."""
        tensors = self._policy.engine_tensors()
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        return Publication(self._version(), num_bytes, tensors=tensors)

    def send(self, backend: str, engines: Mapping[str, Any]) -> Publication:
        """Send the current weights to engines on GPUs by vLLM's own transfer; see ``WeightSender`` for ``engines``."""
        policy = self._policy
        if self._sender is None or not self._sender.reaches(engines):
            self._sender = WeightSender(
                backend, engines, self._workers, policy.engine_tensors, policy.engine_dtype, self._index
            )
        sender, self._sender = self._sender, None  # a connection that breaks off is not used again
        num_bytes = sender.send()
        self._sender = sender
        return Publication(self._version(), num_bytes, sent=True)

    def export(self, folder: str, merged: bool = True) -> None:
        """Write the policy as a Hugging Face folder, or its adapters; the first learner does it for all."""
        self._policy.export(folder, merged=merged, write=not self._index)
