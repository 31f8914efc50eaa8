"""What runs inside every vLLM worker: exact weight loading and the entropies of its requests.

Mixed into vLLM's worker class by ``worker_extension_cls``, so that ``collective_rpc`` reaches it with one process or many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from rapo_rllib.rollout.vllm_entropy import take_entropies


class PolicyWorker:
    """Methods that ``VLLMEngine`` calls on each worker."""

    model_runner: Any
    vllm_config: Any

    def load_policy_weights(self, weights: Mapping[str, torch.Tensor]) -> list[str]:
        """Load checkpoint-named weights in place; returns the names of parameters that did NOT receive any.

        vLLM only warns when a parameter is left out. The tied LM head counts as received: it is prepacked on CPU, so its
        kernel's copy is made anew after every load, whether or not the stream named it.
        """
        from vllm.config import set_current_vllm_config

        model = self.model_runner.get_model()
        received: set[str] = set()
        original = model.load_weights

        def load_and_note(stream: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
            names = original(stream)
            received.update(names)
            return names

        model.load_weights = load_and_note
        try:
            with set_current_vllm_config(self.vllm_config):
                self.model_runner.reload_weights(weights_iterator=iter(weights.items()))
        finally:
            del model.load_weights
        expected = {name for name, _ in model.named_parameters()}
        return sorted(expected - received - _tied_names(model))

    def take_entropies(self, keys: list[str]) -> list[dict[int, float]]:
        """Recorded entropies of finished requests, by response position."""
        return [take_entropies(key) for key in keys]


def _tied_names(model: torch.nn.Module) -> set[str]:
    """Names under which an embedding shared with the LM head may be missing from the stream."""
    config = getattr(model, "config", None)
    return {"lm_head.weight"} if getattr(config, "tie_word_embeddings", False) else set()
