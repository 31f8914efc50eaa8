"""The part of the learner that gives its weights to engines, and writes them as a Hugging Face folder.

Flow: ``weight_sync.py`` and ``algorithm.py`` -> here, on all learners -> ``weight_publisher.py``, folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

from rapo_rllib.sharding import gathered
from rapo_rllib.weight_digest import digest
from rapo_rllib.weight_publisher import Publication, WeightPublisher, WeightSender, this_node


class GivesWeights:
    """Called on all learners, since sharded weights are gathered from all; the first one's answer counts."""

    # of the learner
    config: Any
    policy: Any
    _learner_index: int
    _weights_seq_no: int
    get_state: Any
    _check_component: Any

    _publisher: WeightPublisher | None = None  # made when the first engine in another process asks
    _sender: WeightSender | None = None  # of vLLM's own transfer

    def publish(self, *, shared_memory: bool, object_store: bool) -> Publication | None:
        """Make the current weights available to engines in other processes; None but on the first learner."""
        tensors = self.policy.engine_tensors()
        if self._learner_index:
            for _ in range(shared_memory + object_store):
                with gathered(tensors):
                    pass  # the first learner's are whole with this one's shards
            return None
        if self._publisher is None:
            self._publisher = WeightPublisher(self.policy.sent_dtype)
        ways = {"shared_memory": shared_memory, "object_store": object_store}
        return replace(self._publisher.publish(tensors, self._weights_seq_no, **ways), base=self.policy.base_digests)

    def hand_over(self) -> Publication:
        """The current weights themselves, for an engine in this process: there is one learner, which holds all of them."""
        tensors = self.policy.engine_tensors()
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        digests = {name: digest(tensor) for name, tensor in tensors.items()}
        base = self.policy.base_digests
        return Publication(self._weights_seq_no, this_node(), num_bytes, tensors=tensors, digests=digests, base=base)

    def send(self, backend: str, engines: Mapping[str, Any]) -> Publication:
        """Send the current weights to engines on GPUs by vLLM's own transfer; see ``WeightSender`` for ``engines``."""
        workers, policy = self.config.engine_settings.tensor_parallel_size, self.policy
        if self._sender is None or not self._sender.reaches(engines):
            self._sender = WeightSender(
                backend, engines, workers, policy.engine_tensors, policy.engine_dtype, self._learner_index
            )
        sender, self._sender = self._sender, None  # a connection that breaks off is not used again
        num_bytes, digests = sender.send()
        self._sender = sender
        return Publication(self._weights_seq_no, this_node(), num_bytes, sent=True, digests=digests)

    def export(self, folder: str, merged: bool = True) -> None:
        """Write the policy as a Hugging Face folder, or its adapters; the first learner does it for all."""
        self.policy.export(folder, merged=merged, write=not self._learner_index)

    def state_from_all(
        self, components: Any = None, not_components: Any = None, *, inference_only: bool = False, **kwargs: Any
    ) -> dict[str, Any] | None:
        """RLlib's ``get_state()`` of the learner, gathered from all of them; None but on the first."""
        first = self._learner_index == 0
        without = [not_components] if isinstance(not_components, str) else list(not_components or ())
        state: dict[str, Any] = self.get_state(components, not_components=[*without, COMPONENT_RL_MODULE], **kwargs)
        if self._check_component(COMPONENT_RL_MODULE, components, not_components):
            weights = self.policy.get_state(inference_only=inference_only, on_all_learners=True, keep=first)
            state[COMPONENT_RL_MODULE] = {DEFAULT_MODULE_ID: weights}
        return state if first else None
