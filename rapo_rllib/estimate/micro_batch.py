"""Memory of one micro batch, by running the learner's own passes on tensors without data.

    config --2 and 3 layers--> fake model --score_row, backward--> peaks by phase --a line through both--> all layers

Gradient checkpointing, chunks of logits, autocast, adapters and the attention along the prefix tree are those of the learner:
it is the same code. Layers of a model are alike, so in each phase the peak is a line in their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from rapo_rllib.batching.packing import PackedRow
from rapo_rllib.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FEW, MORE = 2, 3  # layers of the models that are run
PHASES = FORWARD, HEAD, HEAD_BACKWARD, LAST_LAYER, OTHERS = "forward", "head", "head backward", "last layer", "other layers"


@dataclass(frozen=True)
class MicroBatch:
    """Bytes above the states of the learner that are there when the pass begins."""

    first: int  # of an optimiser step: its gradients come on top as they are made, and are counted
    later: int  # gradients are there already


def micro_batch(config: PretrainedConfig, settings: ModelSettings, row: PackedRow, temperature: float = 1.0) -> MicroBatch:
    """Peak of the forward and backward pass of ``row``.

    Args:
        config: of the model, as transformers has it.
        settings: ``auto`` resolved.
        row: its tokens do not count, their number and their tree do.
        temperature: of the distribution that is scored.
    """
    few, more = (_passes(_with_layers(config, layers), settings, row, temperature) for layers in (FEW, MORE))
    steps = config.get_text_config().num_hidden_layers - FEW
    first, later = (max(a[phase] + steps * (b[phase] - a[phase]) for phase in a) for a, b in zip(few, more, strict=True))
    return MicroBatch(first, later)


def _with_layers(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    made = type(config).from_dict(config.to_dict())
    text = made.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    return made


def _passes(config: PretrainedConfig, settings: ModelSettings, row: PackedRow, temperature: float) -> list[dict[str, int]]:
    """Peaks by phase of the first and of a later micro batch."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from rapo_rllib.attention.forward import RowAttention
    from rapo_rllib.estimate.live_bytes import LiveBytes
    from rapo_rllib.learner.rl_module import score_row

    model = _learner_model(config, settings)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        model.tie_weights()
        optimizer = _with_masters(model, settings)
        known = [*model.parameters(), *model.buffers(), *getattr(optimizer, "masters", [])]
        peaks = []
        with LiveBytes(known) as live, _phases(model, live):
            for _ in range(2):
                before, live.peaks = live.live, {}
                live.phase = FORWARD
                logprobs = score_row(model, row, settings, temperature, RowAttention.BLOCKS)[0]
                live.phase = HEAD_BACKWARD  # begins when autocast has dropped its copies of the weights
                logprobs.sum().backward()
                del logprobs
                peaks.append({phase: live.peaks.get(phase, before) - before for phase in PHASES})
    return peaks


def _learner_model(config: PretrainedConfig, settings: ModelSettings) -> Any:
    """The model as the learner makes it, on the meta device: on fake tensors ``peft`` could not put its adapters in."""
    from transformers import AutoModelForCausalLM

    from rapo_rllib.attention.forward import RowAttention, use_attention
    from rapo_rllib.learner.adapters import Adapters
    from rapo_rllib.models.activation_checkpointing import enable_checkpointing

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, settings.dtype), trust_remote_code=settings.trust_remote_code
        )
        if settings.lora is not None:
            Adapters(model, settings.lora)
    model.config.use_cache = False
    model.train()
    enable_checkpointing(model, settings.gradient_checkpointing)
    use_attention(model, RowAttention.BLOCKS)
    return model


def _with_masters(model: Any, settings: ModelSettings) -> Any:
    """The optimiser where it holds masters: gradients go there."""
    from rapo_rllib.learner.master_weights import MasterWeightAdamW

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    low = any(parameter.dtype == torch.bfloat16 for parameter in trained)
    return MasterWeightAdamW(trained) if low and settings.master_weights is not None else None


@contextmanager
def _phases(model: Any, live: Any) -> Iterator[None]:
    """Tell ``live`` where the passes are: from the LM head on; see ``PHASES``."""
    decoder = model.get_decoder()
    layers = [module for module in decoder.modules() if type(module).__name__ in set(model._no_split_modules or ())]

    def begins(phase: str) -> Any:
        def hook(gradient: torch.Tensor) -> None:
            live.phase = phase

        return hook

    def decoded(module: Any, arguments: Any, output: Any) -> None:
        live.phase = HEAD
        output.last_hidden_state.register_hook(begins(LAST_LAYER))

    def before_last(module: Any, arguments: Any, keywords: Any) -> None:
        states = arguments[0] if arguments else keywords["hidden_states"]
        if live.phase == FORWARD and states.requires_grad:  # not where it is computed again
            states.register_hook(begins(OTHERS))

    hooks = [decoder.register_forward_hook(decoded)]
    if layers:
        hooks.append(layers[-1].register_forward_pre_hook(before_last, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def full_row(max_tokens: int, prompt: int, response: int, group_size: int) -> PackedRow:
    """A row as large as ``pack_rows`` makes them: prompts with as many responses of equal length as there is room for.

    Args:
        max_tokens: of a row; one prompt and response that are longer still make one.
        prompt: tokens of a prompt at most.
        response: tokens of a response at most.
        group_size: responses of a prompt.
    """
    import numpy as np

    from rapo_rllib.batching.packing import pack_rows
    from rapo_rllib.batching.samples import Sample, SampleGroup

    room = max(max_tokens, prompt + response)
    numbers = np.random.default_rng(0)

    def group(responses: int, tokens: int) -> SampleGroup:
        sample = Sample(
            np.zeros(0), np.ones(tokens, bool), np.zeros(tokens, np.float32), np.zeros(tokens, np.float32), 0.0, 1.0
        )
        made = tuple(replace(sample, token_ids=numbers.integers(0, 1 << 40, tokens)) for _ in range(responses))
        return SampleGroup(numbers.integers(0, 1 << 40, prompt), made)

    groups, whole = [], prompt + group_size * response
    while room >= whole:
        groups.append(group(group_size, response))
        room -= whole
    if not groups or room > prompt + 1:
        count = max(1, -(-(room - prompt) // response))
        groups.append(group(count, (room - prompt) // count))
    (row,) = pack_rows(groups, 1 << 60)
    return row
