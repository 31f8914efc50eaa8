"""The methods that run inside every vLLM worker: exact weight loading, and the recording of sampled tokens.

``worker_extension_cls`` mixes them into vLLM's worker class, so that ``collective_rpc`` reaches them in one process or many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from rapo_rllib.models.lora import merged_weights
from rapo_rllib.rollout.vllm.late_values import TokenRecord
from rapo_rllib.rollout.vllm.recorder import TokenRecorder

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def _is_no_rounding(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Attempted to load weight %s with dtype")


# The learner's float32 weights are meant to be rounded to the engine's dtype, but vLLM warns of it per weight and load. The
# filter is set on import, since a worker loads the weights on disk before any method of ours is called.
logging.getLogger("vllm.model_executor.models.utils").addFilter(_is_no_rounding)


class PolicyWorker:
    """Methods that ``VLLMEngine`` calls on each worker."""

    model_runner: Any
    vllm_config: VllmConfig
    _load: Callable[[Iterable[tuple[str, torch.Tensor]]], set[str]]  # the model's own
    _recorder: TokenRecorder
    _merge: tuple[float, torch.dtype] | None = None  # scaling of adapters, and dtype of the base that they were trained with
    _loaded: set[str] | None = None  # parameters that took something since the load began; None: none has begun

    def merge_adapters(self, scaling: float, base_dtype: str) -> None:
        """Make later loads take LoRA adapters, and add these to base weights read from disk."""
        self._merge = scaling, getattr(torch, base_dtype)

    def _base_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the weights of the model's checkpoint by vLLM's own loader, memory-mapped; none without one (dummy)."""
        from vllm.model_executor.model_loader import get_model_loader

        loader = get_model_loader(replace(self.vllm_config.load_config, use_tqdm_on_load=False))
        if hasattr(loader, "get_all_weights"):
            yield from loader.get_all_weights(self.vllm_config.model_config, self.model_runner.get_model())

    def begin_load(self) -> None:
        """Record from now on which parameters the model is given."""
        if self._loaded is None:
            model = self.model_runner.get_model()
            self._load, model.load_weights = model.load_weights, self._load_and_note
        self._loaded = set()

    def _load_and_note(self, stream: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        names: set[str] = self._load(stream)
        assert self._loaded is not None
        self._loaded |= names
        return names

    def load_policy_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load checkpoint-named weights, or adapters, in place; ``finalize_weights`` tells which parameters got nothing."""
        from vllm.config import set_current_vllm_config

        # vLLM warns of modules that have no weights
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        self.begin_load()
        stream: Iterable[tuple[str, torch.Tensor]] = weights.items()
        if self._merge is not None:
            device = next(self.model_runner.get_model().parameters()).device
            stream = merged_weights(self._base_weights(), weights, *self._merge, device)
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.reload_weights(weights_iterator=iter(stream))

    def finalize_weights(self) -> list[str]:
        """Rebuild what is derived from the weights, by whichever way these were loaded.

        Returns:
            Parameters that received nothing, of which vLLM only warns. A tied LM head is not counted, since it may receive
            nothing: see ``_repack_tied_head``.
        """
        model = self.model_runner.get_model()
        _repack_tied_head(model)
        return sorted({name for name, _ in model.named_parameters()} - (self._loaded or set()) - _tied_names(model))

    def load_policy_weights_file(self, path: str) -> None:
        """Load weights from a file of ``torch.save``, which is memory-mapped."""
        self.load_policy_weights(torch.load(path, mmap=True, map_location="cpu"))

    def start_recording(self) -> None:
        """Attach the token recorder to vLLM's sampler."""
        processors = self.model_runner.input_batch.logitsprocs.all
        (self._recorder,) = [processor for processor in processors if isinstance(processor, TokenRecorder)]
        self._recorder.watch(self.model_runner.sampler.topk_topp_sampler)

    def record_version(self, version: int) -> None:
        """Set the weight version that is recorded for tokens from now on."""
        self._recorder.version = version

    def take_records(self, keys: Sequence[str], lengths: Sequence[int]) -> list[dict[int, TokenRecord]]:
        """Take entropies, logprobs and versions of finished requests, by position in responses of ``lengths`` tokens."""
        return self._recorder.take(keys, lengths)


def _repack_tied_head(model: torch.nn.Module) -> None:
    """Rebuild the LM head's kernel copy of a tied embedding: on a CPU a load without the head's own name leaves it stale."""
    head = getattr(model, "lm_head", None)
    if _tied_names(model) and head is not None:
        head.quant_method.process_weights_after_loading(head)


def _tied_names(model: torch.nn.Module) -> set[str]:
    """Return the names that a load may leave out, since the LM head shares the weights of the embedding."""
    config = getattr(model, "config", None)
    return {"lm_head.weight"} if getattr(config, "tie_word_embeddings", False) else set()
