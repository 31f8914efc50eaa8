"""The learner's weights, given to engines or written as a Hugging Face folder.

Flow: ``weights/sync.py`` and ``checkpoints/algorithm.py`` -> here, on all learners -> ``weights/publisher.py``, folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapo_rllib.learner.rl_module import CausalLMRLModule
from rapo_rllib.weights.dtensor import gathered
from rapo_rllib.weights.publisher import Publication, WeightSender, publish


class LearnerWeights:
    """The policy's weights for engines and exports. All learners call each method, to gather shards; the first's result counts.

    Args:
        policy: the owner of the weights.
        index: of this learner.
        tensor_parallel_size: workers of each engine.
        version: returns the version of the weights now.
    """

    def __init__(self, policy: CausalLMRLModule, index: int, tensor_parallel_size: int, version: Callable[[], int]) -> None:
        self._policy, self._index, self._workers, self._version = policy, index, tensor_parallel_size, version
        self._senders: list[WeightSender] = []  # for vLLM's own transfer, one for each group of env runners

    def publish(self) -> Publication | None:
        """Publish the current weights to engines in other processes; None on all learners but the first."""
        tensors = self._policy.engine_tensors()
        if not self._index:
            return publish(tensors, self._version(), self._policy.sent_dtype)
        with gathered(tensors):
            return None  # gives this learner's shards to the first

    def publish_local(self) -> Publication:
        """Publish the live weights to an engine in this process; there is one learner then, which holds all of them."""
        tensors = self._policy.engine_tensors()
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        return Publication(self._version(), num_bytes, tensors=tensors)

    def send(self, backend: str, engines: Mapping[str, Any]) -> Publication:
        """Send the current weights to engines on GPUs by vLLM's own transfer; see ``WeightSender`` for ``engines``."""
        sender = self._connected(engines)
        if sender is None:
            policy = self._policy
            sender = WeightSender(backend, engines, self._workers, policy.engine_tensors, policy.engine_dtype, self._index)
        num_bytes = sender.send()
        self._senders.append(sender)
        return Publication(self._version(), num_bytes, sent=True)

    def _connected(self, engines: Mapping[str, Any]) -> WeightSender | None:
        """Take out the connection to exactly these engines; other connections of theirs end, as an engine keeps one alone."""
        found = None
        for sender in [sender for sender in self._senders if sender.shares_with(engines)]:
            self._senders.remove(sender)
            if sender.reaches(engines):
                found = sender
            else:
                sender.shut_down()
        return found

    def export(self, folder: str, merged: bool = True) -> None:
        """Write the policy as a Hugging Face folder, or its adapters alone; only the first learner writes."""
        self._policy.export(folder, merged=merged, write=not self._index)
