"""What a pass holds, counted on tensors without data."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig

from rapo_rllib.estimate import micro_batch as counted
from rapo_rllib.estimate.live_bytes import LiveBytes
from rapo_rllib.estimate.micro_batch import full_row, micro_batch
from rapo_rllib.settings import LoraSettings, ModelSettings

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
}


def settings(**changes: object) -> ModelSettings:
    return ModelSettings(**{"autocast_dtype": None, "logits_chunk_size": 32, **changes})  # type: ignore[arg-type]


def test_bytes_live_until_the_last_tensor_is_gone() -> None:
    """Two of 400 bytes: at once 800, and a view counts nothing."""
    known = torch.zeros(50)
    with LiveBytes([known]) as live:
        live.phase = "all"
        one = torch.zeros(100)
        view = one.view(10, 10)
        two = one + 1
        assert (live.live, live.peaks) == (800, {"all": 800})
        del one
        assert live.live == 800
        del view, two
        _ = known.view(5, 10)
        assert live.live == 0
        assert live.peaks == {"all": 800}


def test_saved_tensors_of_a_small_net_by_hand() -> None:
    """x @ w and its relu, 10 x 20 float32 each: 1,600 bytes together; then the product goes, backward needs the relu only."""
    x, w = torch.ones(10, 30), torch.ones(30, 20, requires_grad=True)
    with LiveBytes([x, w]) as live:
        live.phase = "forward"
        result = torch.relu(x @ w).sum()
        assert live.live == 10 * 20 * 4 + 4
    assert live.peaks["forward"] == 2 * 10 * 20 * 4
    del result


@pytest.mark.parametrize("checkpointing", [False, True, "selective"])
@pytest.mark.parametrize("changes", [{}, {"autocast_dtype": "bfloat16"}, {"lora": LoraSettings(rank=4)}])
def test_a_line_through_two_depths_is_the_whole_model(checkpointing: bool | str, changes: dict) -> None:
    config = AutoConfig.for_model("llama", **SIZES)
    own = settings(gradient_checkpointing=checkpointing, **changes)
    row = full_row(200, 40, 30, 5)
    first, later = (max(peaks.values()) for peaks in counted._passes(config, own, row, 1.0))
    found = micro_batch(config, own, row)
    assert found.first == pytest.approx(first, rel=0.02)
    assert found.later == pytest.approx(later, rel=0.02)


def test_the_casts_of_autocast_live_until_the_head_has_run() -> None:
    """So a large model has its peak in the head's forward pass, where models of two and three layers have it backward."""
    config = AutoConfig.for_model(
        "llama", **{**SIZES, "intermediate_size": 1024, "num_hidden_layers": 20, "vocab_size": 20_000}
    )
    own, row = settings(autocast_dtype="bfloat16", gradient_checkpointing="selective"), full_row(200, 40, 30, 5)
    peaks = counted._passes(config, own, row, 1.0)[1]
    assert max(peaks, key=peaks.__getitem__) == counted.HEAD
    assert micro_batch(config, own, row).later == pytest.approx(peaks[counted.HEAD], rel=0.02)


def test_real_tensors_live_as_long_as_those_without_data() -> None:
    """The same passes on a real model, counted in the same way."""
    from rapo_rllib.attention.forward import RowAttention
    from rapo_rllib.learner.rl_module import score_row

    config = AutoConfig.for_model("llama", **{**SIZES, "num_hidden_layers": 2})
    own, row = settings(), full_row(200, 40, 30, 5)
    model = counted._learner_model(config, own).to_empty(device="cpu")
    model.tie_weights()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    row.token_ids.remainder_(300)
    row.scored_ids.remainder_(300)
    with LiveBytes([*model.parameters(), *model.buffers()]) as live:
        logprobs = score_row(model, row, own, 1.0, RowAttention.BLOCKS)[0]
        logprobs.sum().backward()
    assert micro_batch(config, own, row).first == pytest.approx(max(live.peaks.values()), rel=0.05)


def test_what_saves_memory_is_counted_so() -> None:
    config, row = AutoConfig.for_model("llama", **{**SIZES, "num_hidden_layers": 30}), full_row(400, 40, 30, 12)
    kept, selective, recomputed = (
        micro_batch(config, settings(gradient_checkpointing=way), row).later for way in (False, "selective", True)
    )
    assert recomputed < 0.5 * selective < 0.5 * kept
    half = micro_batch(config, settings(), full_row(200, 40, 30, 12)).later
    assert half == pytest.approx(kept / 2, rel=0.2)


def test_logits_of_a_chunk_are_there_at_once() -> None:
    """328 predictions in place of 32 at a time: at least their logits, of 3,000 words in float32, are more."""
    config, row = (
        AutoConfig.for_model("llama", **{**SIZES, "num_hidden_layers": 2, "vocab_size": 3000}),
        full_row(400, 40, 30, 12),
    )
    small, large = (micro_batch(config, settings(logits_chunk_size=size), row).later for size in (32, 10_000))
    assert large - small > (row.num_loss_tokens - 32) * 3000 * 4


@pytest.mark.parametrize(
    ("max_tokens", "tokens"), [(100, 100), (700, 700), (150, 150), (1000, 1000)], ids=["one", "many", "group", "several groups"]
)
def test_a_row_is_nearly_full(max_tokens: int, tokens: int) -> None:
    """A last token predicts nothing and is not in the row; responses are of equal length."""
    row = full_row(max_tokens, prompt=40, response=30, group_size=5)
    assert 0.9 * tokens <= row.num_tokens <= tokens


def test_a_trajectory_that_is_longer_than_the_budget_is_a_row() -> None:
    assert full_row(50, prompt=40, response=30, group_size=5).num_tokens == 69
