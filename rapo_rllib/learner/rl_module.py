"""The policy: a Hugging Face causal language model as an RLlib ``TorchRLModule``.

    PackedRow --forward_train--> logprobs and entropies of its loss tokens --> objective, in ``learner.py``
    get_state(inference_only=True) --> engine weights --> ``rollout/``

The engine generates; this module only scores tokens and holds the weights that are trained.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.annotations import override

from rapo_rllib.attention.forward import RowAttention, hidden_states
from rapo_rllib.attention.probe import row_attention
from rapo_rllib.batching.chunked_logprobs import logprobs_and_entropies
from rapo_rllib.batching.packing import PackedRow
from rapo_rllib.learner.adapters import Adapters
from rapo_rllib.learner.fsdp import CallModel, ShardedModel, call_model
from rapo_rllib.learner.rounding import rounded
from rapo_rllib.models.activation_checkpointing import compile_layers, enable_checkpointing
from rapo_rllib.models.devices import resolved_dtype
from rapo_rllib.models.loading import load_causal_lm, load_tokenizer, resolve_model, save_causal_lm
from rapo_rllib.settings import ModelSettings, Settings
from rapo_rllib.weights.dtensor import gathered, shard_like
from rapo_rllib.weights.packing import PackedWeights, pack_weights, unpack_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rapo_rllib.learner.lockstep import Lockstep

logger = logging.getLogger(__name__)

ROW = "row"  # key of the batch: a PackedRow
LOGPROBS = "logprobs"
ENTROPIES = "entropies"
LM_HEAD = "lm_head.weight"
WITH_WEIGHTS = "with_weights"  # in model_config; False: ``shard()`` brings the first learner's weights


class CausalLMRLModule(TorchRLModule):
    """A causal language model that scores packed rows.

    ``model_config["settings"]`` are the job's :class:`Settings`; read are the model, the dtype in which engines are sent
    weights, and the temperature of the scored distribution.
    """

    @override(TorchRLModule)
    def setup(self) -> None:
        """Load the model. Raises ``ValueError`` if it scales logits as :func:`_logits` does not."""
        assert isinstance(self.model_config, dict), self.model_config
        job: Settings = self.model_config["settings"]
        self.settings, self._temperature = job.model, job.rollout.temperature
        self.engine_dtype: torch.dtype = getattr(torch, job.engine.dtype)
        self.with_weights: bool = self.model_config.get(WITH_WEIGHTS, True)
        self.language_model = load_causal_lm(self.settings, self.with_weights)
        self.language_model.config.use_cache = False
        if self.with_weights and (wrong := _wrong_logits(self.language_model)):
            raise ValueError(
                f"model.name_or_path = {self.settings.name_or_path!r}: {self.language_model.config.model_type!r} models have "
                f"other logits than the learner computes (by {wrong:.0%}), so it would train on wrong probabilities: name "
                "a model of another type, or scale as this type does in _logits of rapo_rllib/learner/rl_module.py"
            )
        lora = self.settings.lora
        self.adapters = None if lora is None else Adapters(self.language_model, lora)
        enable_checkpointing(self.language_model, self.settings.gradient_checkpointing)
        if self.settings.compile:
            compile_layers(self.language_model)
        self._call_model: CallModel = call_model(self.language_model)

    def shard(self, device: torch.device, lockstep: Lockstep) -> None:
        """Shard the weights: this learner keeps its part only. From now on, all learners score, gather and load at once."""
        low = any(p.requires_grad and p.dtype == torch.bfloat16 for p in self.language_model.parameters())
        masters = low and self.settings.master_weights is not None
        self._call_model = ShardedModel(self.language_model, device, lockstep, masters)
        _ = self.attention  # found by trial passes: here, since all learners must run them at once

    @property
    def is_sharded(self) -> bool:
        """Whether the weights are split over several learners."""
        return isinstance(self._call_model, ShardedModel)

    @cached_property
    def attention(self) -> RowAttention:
        """The attention that this model passes rows with; found by trial on first use, when the model is on its device."""
        call, model = self._call_model, self.language_model
        dtype = matmul_dtype(self.settings, next(model.parameters()).device)
        return (
            row_attention(model, dtype, call, call.attempt) if isinstance(call, ShardedModel) else row_attention(model, dtype)
        )

    @override(TorchRLModule)
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Score the row ``batch["row"]``: ``logprobs`` ``[N]`` with gradient, ``entropies`` ``[N]`` without, both in nats."""
        logprobs, entropies = self.scored_by(self._call_model, batch[ROW])
        return {LOGPROBS: logprobs, ENTROPIES: entropies}

    def scored_by(self, call_model: CallModel, row: PackedRow) -> tuple[torch.Tensor, torch.Tensor]:
        """Score a row as the policy does, with the model that ``call_model`` calls: the policy's, or one of the same form."""
        return call_model(score_row, row, self.settings, self._temperature, self.attention)

    @override(TorchRLModule)
    def get_state(
        self, *args: Any, inference_only: bool = False, on_all_learners: bool = False, keep: bool = True, **kwargs: Any
    ) -> PackedWeights:
        """Return weights under their checkpoint names; with LoRA, the adapters alone.

        Without LoRA, ``lm_head.weight`` is always included, even if tied to the embedding: vLLM on CPU keeps a packed copy of
        the LM head, which would otherwise silently keep its old values.

        Args:
            *args: RLlib's ``components``, not used.
            inference_only: True: weights are rounded to ``sent_dtype``.
            on_all_learners: True: the caller asks all learners at once, which sharded weights need.
            keep: False for a learner that only gives its shards: its result is empty.
            **kwargs: RLlib's, not used.

        Raises:
            RuntimeError: the weights are sharded, but not ``on_all_learners``: a learner asked alone would wait for the others.
        """
        if self.is_sharded and not on_all_learners:
            raise RuntimeError(
                "the weights are sharded over several learners, and one of them was asked for all: use RAPO.get_module(), "
                "RAPO.export_policy(), or get_state() of the RAPOLearnerGroup"
            )
        with gathered(self.weights(exact=not inference_only)) as named:
            return pack_weights(named if keep else (), self.sent_dtype if inference_only else None)

    @property
    def sent_dtype(self) -> torch.dtype:
        """The dtype in which engines are sent weights; adapters are sent in float32, as engines round after they merge."""
        return self.engine_dtype if self.adapters is None else torch.float32

    def reference(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(language_model, *arguments)`` with the adapters off: on the model that training started from."""
        assert self.adapters is not None
        with self.adapters.off():
            return self._call_model(function, *arguments)

    def engine_tensors(self) -> dict[str, torch.Tensor]:
        """Return live weights, or this learner's shards, by checkpoint name; tied weights once, as the engine ties them."""
        weights = self.weights()
        names = {id(tensor): name for name, tensor in reversed(weights.items())}
        return {name: tensor for name, tensor in weights.items() if names[id(tensor)] == name}

    def weights(self, *, exact: bool = False) -> dict[str, torch.Tensor]:
        """Return weights in the dtype that passes compute with, or ``exact``: as held; with LoRA, the adapters alone.

        Without LoRA, the LM head's weight is always included. Tied weights are the same object.
        """
        if self.adapters is not None:
            return {name: tensor.detach() for name, tensor in self.adapters.tensors().items()}
        weights = self.language_model.state_dict(keep_vars=True)
        weights[LM_HEAD] = self.language_model.get_output_embeddings().weight
        computed = {id(tensor): tensor.detach() for tensor in weights.values()}
        if isinstance(self._call_model, ShardedModel) and not exact:
            computed = {key: self._call_model.computed(tensor) for key, tensor in computed.items()}
        return {name: computed[id(tensor)] for name, tensor in weights.items()}

    @override(TorchRLModule)
    @torch.no_grad()
    def set_state(self, state: PackedWeights) -> None:
        """Load the weights of ``get_state()``; raises ``RuntimeError`` if a name is missing or unknown, or a shape differs."""
        own = self.language_model.state_dict() if self.adapters is None else self.adapters.tensors()
        given = {name: tensor for name, tensor in unpack_weights(state).items() if name in own or name != LM_HEAD}
        here, there = ({name: list(tensor.shape) for name, tensor in tensors.items()} for tensors in (own, given))
        if wrong := sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name)):
            shapes = " and ".join(f"{of.get(wrong[0], 'missing')} {where}" for of, where in ((there, "there"), (here, "here")))
            raise RuntimeError(f"{len(wrong)} weights do not match, {wrong[0]!r} for one, which is {shapes}")
        for name, tensor in own.items():
            tensor.copy_(shard_like(given[name], tensor))

    @torch.no_grad()
    def score_as_engine(self, sequences: Sequence[Sequence[int]], *, rounds: bool = True) -> list[list[float]]:
        """Return teacher-forced logprobs (nats, temperature 1) under the current weights, rounded as the engine receives them.

        ``result[i][j]`` belongs to token ``j + 1`` of sequence ``i``. Each sequence needs at least two tokens.
        ``rounds=False`` passes through the weights as they are, without the memory that rounding takes.
        """
        with nullcontext() if self.adapters is None else self.adapters.off():
            return self._call_model(_logprobs, sequences, self.engine_dtype if rounds else None, self.adapters)

    def export(self, folder: str, *, merged: bool = True, write: bool = True) -> None:
        """Write weights and tokenizer as a Hugging Face folder that ``transformers`` and vLLM load.

        Args:
            folder: to write to.
            merged: False: with LoRA the adapters alone, for ``PeftModel.from_pretrained``.
            write: False for a learner that only gives its shards to the one that writes.
        """
        if self.adapters is not None and not merged:
            self.adapters.save(folder, resolve_model(self.settings.name_or_path), write)
        else:
            self._export_model(folder, write)
        if write:
            load_tokenizer(self.settings).save_pretrained(folder)

    def _export_model(self, folder: str, write: bool) -> None:
        weights: dict[str, torch.Tensor] | None = None  # None: the model's own
        if self.adapters is not None:
            weights = self.adapters.merged_state(write)
        elif self.is_sharded:
            with gathered(self.engine_tensors()) as named:
                weights = {name: tensor.cpu() for name, tensor in named} if write else None
        if write:
            save_causal_lm(self.language_model, folder, weights)


def _logprobs(
    language_model: PreTrainedModel, sequences: Sequence[Sequence[int]], dtype: torch.dtype | None, adapters: Adapters | None
) -> list[list[float]]:
    with nullcontext() if dtype is None else rounded(language_model, dtype, adapters):
        return [_sequence_logprobs(language_model, sequence) for sequence in sequences]


def _sequence_logprobs(language_model: PreTrainedModel, token_ids: Sequence[int]) -> list[float]:
    ids = torch.tensor([token_ids], device=next(language_model.parameters()).device)
    log_p = torch.log_softmax(language_model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
    return log_p.gather(-1, ids[0, 1:, None])[:, 0].tolist()


def score_row(
    language_model: PreTrainedModel,
    row: PackedRow,
    settings: ModelSettings,
    temperature: float,
    attention: RowAttention = RowAttention.MASK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute logprobs ``[N]`` and entropies ``[N]`` of a row's loss tokens; the LM head runs only on states that predict one.

    Switch the model with ``use_attention`` first, unless ``attention`` is ``MASK`` or ``UNSHARED``.
    """
    device = row.token_ids.device
    dtype = matmul_dtype(settings, device)
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        logprobs, entropies = logprobs_and_entropies(
            hidden_states(language_model, row, attention)[row.scored_positions],
            row.scored_ids,
            lambda states: _logits(language_model, states, temperature),
            settings.logits_chunk_size,
        )
    return logprobs[row.loss_index], entropies[row.loss_index]


def matmul_dtype(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """Return the autocast dtype on this device, or None for no autocast."""
    name: str | None = settings.autocast_dtype
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else resolved_dtype(name)
    return None if name in (None, settings.dtype, "float32") else getattr(torch, name)


@torch.no_grad()
def _wrong_logits(language_model: PreTrainedModel) -> float:
    """Return how far, relative, logits of two tokens are from those of the model's own ``forward``; 0: only by rounding."""
    ids = torch.tensor([[0, 1]])
    try:
        states = language_model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        own = language_model(input_ids=ids, use_cache=False).logits.float()
    except Exception as error:  # whatever kernels for GPUs raise on the CPU, where models are loaded
        logger.warning("%s: its scaling of logits is not checked (%s)", type(language_model).__name__, error)
        return 0.0
    apart = float((_logits(language_model, states, 1.0).float() - own).norm() / own.norm())
    return apart if apart > (0.02 if states.dtype.itemsize < 4 else 1e-3) else 0.0


def _logits(language_model: PreTrainedModel, states: torch.Tensor, temperature: float) -> torch.Tensor:
    """Apply the LM head as ``forward`` does, with scaling (Cohere, Granite) and soft cap (Gemma 2); divide by temperature."""
    config = language_model.config
    logits = language_model.get_output_embeddings()(states)
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    if scale != 1.0:
        logits = logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits if temperature == 1.0 else logits / temperature
