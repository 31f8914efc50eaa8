"""What runs inside every vLLM worker: exact weight loading and the record of its requests' tokens.

Mixed into vLLM's worker class by ``worker_extension_cls``, so that ``collective_rpc`` reaches it with one process or many.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rapo_rllib.lora import merged_weights
from rapo_rllib.rollout.vllm_recorder import TokenRecord, TokenRecorder

SAMPLING_MODULE = "topk_topp_sampler"


def _is_no_rounding(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Attempted to load weight %s with dtype")


# Rounding the learner's float32 weights to the engine's dtype is what is meant; vLLM warns of it per weight and load. Done on
# import, since a worker loads the weights on disk before any method of ours is called.
logging.getLogger("vllm.model_executor.models.utils").addFilter(_is_no_rounding)


class PolicyWorker:
    """Methods that ``VLLMEngine`` calls on each worker."""

    model_runner: Any
    vllm_config: Any
    _recorder: TokenRecorder
    _merge: tuple[float, torch.dtype] | None = None  # scaling of adapters, and dtype of the base that they were trained with

    def merge_adapters(self, scaling: float, base_dtype: str) -> None:
        """What is loaded from now on are LoRA adapters: they are added to the model's weights on disk."""
        self._merge = scaling, getattr(torch, base_dtype)

    def _base_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's checkpoint, mapped, not read: as vLLM itself loads it, wherever it is."""
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(replace(self.vllm_config.load_config, use_tqdm_on_load=False))
        weights: Iterator[tuple[str, torch.Tensor]] = loader.get_all_weights(
            self.vllm_config.model_config, self.model_runner.get_model()
        )
        return weights

    def load_policy_weights(self, weights: Mapping[str, torch.Tensor]) -> list[str]:
        """Load checkpoint-named weights, or adapters, in place; returns the names of parameters that did NOT receive any.

        vLLM only warns when a parameter is left out. A tied LM head may be: see ``_repack_tied_head``.
        """
        from vllm.config import set_current_vllm_config

        # it warns of modules that have no weights
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        model = self.model_runner.get_model()
        received: set[str] = set()
        original = model.load_weights

        def load_and_note(stream: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
            names = original(stream)
            received.update(names)
            return names

        stream: Iterable[tuple[str, torch.Tensor]] = weights.items()
        if self._merge is not None:
            stream = merged_weights(self._base_weights(), weights, *self._merge, next(model.parameters()).device)
        model.load_weights = load_and_note
        try:
            with set_current_vllm_config(self.vllm_config):
                self.model_runner.reload_weights(weights_iterator=iter(stream))
        finally:
            del model.load_weights
        expected = {name for name, _ in model.named_parameters()}
        return sorted(expected - received - _tied_names(model))

    def settle_weights(self) -> None:
        """Make anew what is derived from weights, however those came."""
        _repack_tied_head(self.model_runner.get_model())

    def load_policy_weights_file(self, path: str) -> list[str]:
        """The same for weights in a safetensors file, which is mapped, not read."""
        from safetensors.torch import load_file

        return self.load_policy_weights(load_file(path))

    def start_recording(self) -> str:
        """Attach the recorder to what samples; returns what this version of vLLM lacks for that, "" if nothing."""
        sampling = getattr(getattr(self.model_runner, "sampler", None), SAMPLING_MODULE, None)
        if not isinstance(sampling, torch.nn.Module):
            return f"{type(self.model_runner).__name__}.sampler.{SAMPLING_MODULE}"
        processors = getattr(getattr(self.model_runner, "input_batch", None), "logitsprocs", None)
        found = [processor for processor in getattr(processors, "all", ()) if isinstance(processor, TokenRecorder)]
        if not found:
            return f"{TokenRecorder.__name__} in {type(self.model_runner).__name__}.input_batch.logitsprocs"
        self._recorder = found[0]
        self._recorder.watch(sampling)
        return ""

    def take_records(self, keys: Sequence[str]) -> list[dict[int, TokenRecord]]:
        """Entropies and logprobs of finished requests, by response position."""
        return self._recorder.take(keys)


def _repack_tied_head(model: torch.nn.Module) -> None:
    """Make the LM head's kernel copy of a tied embedding anew: a stream without the head's own name leaves it stale on CPU."""
    head = getattr(model, "lm_head", None)
    if _tied_names(model) and head is not None:
        head.quant_method.process_weights_after_loading(head)


def _tied_names(model: torch.nn.Module) -> set[str]:
    """Names under which an embedding shared with the LM head may be missing from the stream."""
    config = getattr(model, "config", None)
    return {"lm_head.weight"} if getattr(config, "tie_word_embeddings", False) else set()
