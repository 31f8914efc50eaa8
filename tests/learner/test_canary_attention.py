"""How the learner scores the sequences of a canary."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_model

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.learner.rl_module import _sequence_logprobs


def test_sequences_of_a_canary_are_scored_by_sdpa() -> None:
    """Under FlexAttention that was compiled, each of their lengths would be compiled for itself."""
    model = tiny_model("llama", torch.float32).eval()
    expected = _sequence_logprobs(model, [3, 4, 5])
    use_attention(model, RowAttention.FLEX)
    used = []
    model.get_decoder().register_forward_pre_hook(lambda *_: used.append(model.config._attn_implementation))
    assert _sequence_logprobs(model, [3, 4, 5]) == pytest.approx(expected, abs=1e-6)
    assert (used, model.config._attn_implementation) == (["sdpa"], "tree_flex")
