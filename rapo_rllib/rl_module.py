"""The policy: a Hugging Face causal language model as an RLlib ``TorchRLModule``.

    PackedRow --forward_train--> logprobs and entropies of its loss tokens --> objective, in ``learner.py``
    get_state(inference_only=True) --> engine weights --> ``rollout/``

The engine generates; this module only scores tokens and holds the weights that are trained.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.utils.annotations import override
from torch.func import functional_call

from rapo_rllib.batching.chunked_logprobs import logprobs_and_entropies
from rapo_rllib.batching.packing import PackedRow
from rapo_rllib.hardware import resolved_dtype
from rapo_rllib.models import load_causal_lm, load_tokenizer
from rapo_rllib.settings import ModelSettings
from rapo_rllib.weights import PackedWeights, pack_weights, unpack_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROW = "row"  # key of the batch: a PackedRow
LOGPROBS = "logprobs"
ENTROPIES = "entropies"
LM_HEAD = "lm_head.weight"


class CausalLMRLModule(TorchRLModule):
    """A causal language model that scores packed rows.

    ``model_config`` holds the fields of :class:`ModelSettings`, and optionally ``engine_dtype`` ("bfloat16"), in which
    ``get_state(inference_only=True)`` sends weights, and ``temperature`` (1.0) of the distribution that is scored.
    """

    @override(TorchRLModule)
    def setup(self) -> None:
        """Load the model. An ``AttributeError`` leaves as ``RuntimeError``: RLlib would report a deprecated constructor."""
        try:
            self._setup()
        except AttributeError as error:
            raise RuntimeError(f"the language model could not be set up: {error}") from error

    def _setup(self) -> None:
        assert isinstance(self.model_config, dict), self.model_config
        options = dict(self.model_config)
        self.temperature: float = float(options.pop("temperature", 1.0))
        self.engine_dtype: torch.dtype = getattr(torch, options.pop("engine_dtype", "bfloat16"))
        known = {field.name for field in fields(ModelSettings)}
        if unknown := sorted(set(options) - known):
            raise ValueError(f"model: unknown key {unknown[0]!r}; known keys are {sorted(known)}")
        self.settings = ModelSettings(**options)
        self.language_model = load_causal_lm(self.settings)
        self.language_model.config.use_cache = False
        if self.settings.gradient_checkpointing:
            self.language_model.gradient_checkpointing_enable({"use_reentrant": False})

    @override(TorchRLModule)
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Score the row ``batch["row"]``: ``logprobs`` ``[N]`` with gradient, ``entropies`` ``[N]`` without, both in nats."""
        logprobs, entropies = score_row(self.language_model, batch[ROW], self.settings, self.temperature)
        return {LOGPROBS: logprobs, ENTROPIES: entropies}

    @override(TorchRLModule)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> PackedWeights:
        """Weights under their checkpoint names. ``inference_only``: rounded to the engine's dtype.

        ``lm_head.weight`` is always among them, also where it is tied to the embedding: vLLM on CPU keeps a packed copy of
        its own, which would silently stay behind.
        """
        weights = self.language_model.state_dict()
        weights[LM_HEAD] = self.language_model.get_output_embeddings().weight
        return pack_weights(weights.items(), self.engine_dtype if inference_only else None)

    @override(TorchRLModule)
    def set_state(self, state: PackedWeights) -> None:
        """Load the weights of ``get_state()``; raises ``RuntimeError`` if a name is missing or unknown."""
        own = self.language_model.state_dict()
        weights = {name: tensor for name, tensor in unpack_weights(state).items() if name in own or name != LM_HEAD}
        self.language_model.load_state_dict(weights, strict=True)

    @torch.no_grad()
    def score_as_engine(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Teacher-forced logprobs (nats, temperature 1) under the current weights, rounded as the engine receives them.

        ``result[i][j]`` belongs to token ``j + 1`` of sequence ``i``. Each sequence needs at least two tokens.
        """
        device = next(self.language_model.parameters()).device
        rounded = {
            name: value.to(self.engine_dtype).to(value.dtype)
            for name, value in self.language_model.named_parameters()
            if value.dtype != self.engine_dtype
        }
        scores = []
        for sequence in sequences:
            ids = torch.tensor([sequence], device=device)
            logits = functional_call(self.language_model, rounded, (), {"input_ids": ids, "use_cache": False}).logits
            log_p = torch.log_softmax(logits[0, :-1].float(), -1)
            scores.append(log_p.gather(-1, ids[0, 1:, None])[:, 0].tolist())
        return scores

    def export(self, folder: str) -> None:
        """Write weights and tokenizer as a Hugging Face folder that ``transformers`` and vLLM load."""
        self.language_model.config.use_cache = True
        self.language_model.save_pretrained(folder)
        self.language_model.config.use_cache = False
        load_tokenizer(self.settings).save_pretrained(folder)


def score_row(
    language_model: PreTrainedModel, row: PackedRow, settings: ModelSettings, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs ``[N]`` and entropies ``[N]`` of a row's loss tokens; the LM head runs on their hidden states only."""
    device = row.token_ids.device
    dtype = matmul_dtype(settings, device)
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        hidden = language_model.get_decoder()(
            input_ids=row.token_ids[None],
            position_ids=row.position_ids[None],
            attention_mask=_attention_masks(language_model.config, row),
            use_cache=False,
        ).last_hidden_state[0]
        return logprobs_and_entropies(
            hidden[row.loss_positions],
            row.target_ids,
            lambda states: _logits(language_model, states),
            temperature,
            settings.logits_chunk_size,
        )


def matmul_dtype(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """The autocast dtype on this device, or None for no autocast."""
    name = settings.autocast_dtype
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else resolved_dtype(name)
    return None if name in (None, settings.dtype, "float32") else getattr(torch, name)


def _attention_masks(config: Any, row: PackedRow) -> torch.Tensor | dict[str, torch.Tensor]:
    """The row's mask in the form the model wants: one, or one per kind of layer where some see a window only."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in kinds:
        return {kind: row.mask(window if kind == "sliding_attention" else None)[None, None] for kind in kinds}
    return row.mask(None if kinds else window)[None, None]


def _logits(language_model: PreTrainedModel, states: torch.Tensor) -> torch.Tensor:
    """LM head as the model's own ``forward`` applies it: scaling (Cohere, Granite) and soft cap (Gemma 2) included."""
    config = language_model.config
    logits = language_model.get_output_embeddings()(states)
    logits = logits * getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else cap * torch.tanh(logits / cap)
