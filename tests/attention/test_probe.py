"""A model is sent packed rows only if it computes them rightly; otherwise nothing is shared, and the log says so once."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_learner import TinyConfig, trajectory_groups
from tiny_models import VOCABULARY, save_tiny_model, tiny_model
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from rapo_rllib.attention import forward
from rapo_rllib.attention.block_attention import tree_attention
from rapo_rllib.attention.flex import BLOCK, block_mask, padded_row
from rapo_rllib.attention.forward import RowAttention
from rapo_rllib.attention.probe import Probe, row_attention
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.learner.adapters import Adapters
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.rl_module import score_row
from rapo_rllib.settings import LoraSettings, ModelSettings, ObjectiveSettings


class RecurrentConfig(PreTrainedConfig):
    model_type = "recurrent_test_model"
    vocab_size = VOCABULARY


class RecurrentBackbone(PreTrainedModel):
    """A GRU: it takes an attention mask and position ids like the others, and has no use for either."""

    config_class = RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(VOCABULARY, 16)
        self.recurrent = nn.GRU(16, 16, batch_first=True)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.recurrent(self.embeddings(input_ids))[0])


class RecurrentLM(PreTrainedModel):
    config_class = RecurrentConfig
    base_model_prefix = "model"

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.model = RecurrentBackbone(config)
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(logits=self.head(self.model(input_ids).last_hidden_state))


def recurrent_model() -> RecurrentLM:
    torch.manual_seed(0)
    return RecurrentLM(RecurrentConfig()).double()


def test_model_that_ignores_masks_is_packed_without_sharing_and_computes_every_trajectory_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = recurrent_model()
    with caplog.at_level(logging.WARNING, "rapo_rllib"):
        assert row_attention(model) is RowAttention.UNSHARED
    assert "RecurrentLM cannot attend along a prefix tree" in caplog.text
    assert "packed without sharing" in caplog.text and "blocks: " in caplog.text and "mask: " in caplog.text
    batch = TrainingBatch.from_groups(trajectory_groups(), ObjectiveSettings())
    settings = ModelSettings(dtype="float64", autocast_dtype=None)
    for row in pack_rows(batch.groups, 100, share=False):
        logprobs, _ = score_row(model, row, settings, 1.0, RowAttention.UNSHARED)
        starts = [*(row.position_ids == 0).nonzero().flatten().tolist(), row.num_tokens]
        for start, stop in pairwise(starts):
            log_p = torch.log_softmax(model(row.token_ids[None, start:stop]).logits[0], -1)
            position = row.scored_positions[row.loss_index]
            own = (start <= position) & (position < stop)
            assert own.any()
            expected = log_p[position[own] - start, row.target_ids[own]]
            torch.testing.assert_close(logprobs[own], expected, rtol=0, atol=1e-12)


def test_learner_of_such_a_model_takes_the_same_step_and_says_once_why_it_shares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, batch = save_tiny_model(tmp_path), TrainingBatch.from_groups(trajectory_groups(), ObjectiveSettings())
    learners = []
    for shares in (True, False):
        if not shares:  # as of a model whose own attention cannot be replaced, and which knows no other masks
            monkeypatch.setattr("rapo_rllib.attention.probe.CANDIDATES", {"cpu": ()})
        config = TinyConfig(folder, dtype="float64")
        learners.append(RAPOTorchLearner(config=config, module_spec=config.get_multi_rl_module_spec()))
        learners[-1].build()
        for _ in range(2):
            learners[-1].update(training_data=batch)
    assert [learner.policy.attention for learner in learners] == [RowAttention.BLOCKS, RowAttention.UNSHARED]
    assert caplog.text.count("packed without sharing") == 1
    for a, b in zip(learners[0].policy.parameters(), learners[1].policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_model_whose_attention_cannot_be_replaced_gets_a_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rapo_rllib.attention.block_attention.TreeBlocks.masks",
        lambda tree, window, dtype: [torch.zeros(size, 1) for size in tree.query_sizes],  # the wrong shape, as of odd heads
    )
    model = tiny_model("llama", torch.float32)
    assert row_attention(model) is RowAttention.MASK and model.config._attn_implementation == "sdpa"


class NoGradient(torch.autograd.Function):
    """An attention whose forward pass is right, and whose backward pass is not there, or is wrong."""

    raises = True

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        if NoGradient.raises:
            raise NotImplementedError("no kernel for the backward pass")
        return gradients[0] * 2


@pytest.mark.parametrize(
    ("raises", "told"),
    [(True, "blocks: NotImplementedError: no kernel for"), (False, "blocks: ArithmeticError: gradients differ by")],
)
def test_an_attention_whose_backward_pass_fails_is_not_taken_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, raises: bool, told: str
) -> None:
    right = tree_attention
    monkeypatch.setattr(NoGradient, "raises", raises)
    failing = lambda *arguments, **options: (NoGradient.apply(right(*arguments, **options)[0]), None)  # noqa: E731
    monkeypatch.setattr(forward, "tree_attention", failing)
    model = tiny_model("llama", torch.float32)
    with caplog.at_level(logging.WARNING, "rapo_rllib"):
        assert row_attention(model) is RowAttention.MASK
    assert "LlamaForCausalLM takes attention 'mask' over packed rows, slower than it could be" in caplog.text
    assert told in caplog.text
    assert all(parameter.grad is None for parameter in model.parameters())


def test_adapters_that_are_still_zero_have_gradients_to_compare() -> None:
    """Those of a fresh adapter's first matrix are 0, since its second one is."""
    model = tiny_model("llama", torch.float32)
    Adapters(model, LoraSettings(rank=2))
    assert row_attention(model) is RowAttention.BLOCKS


@pytest.mark.parametrize(("autocast", "found"), [(None, RowAttention.BLOCKS), ("bfloat16", RowAttention.MASK)])
def test_an_attention_is_tried_in_the_precision_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autocast: str | None, found: RowAttention
) -> None:
    right = tree_attention

    def only_float32(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **options: Any
    ) -> Any:
        if value.dtype is not torch.float32:
            raise NotImplementedError(f"no kernel for {value.dtype}")
        return right(module, query, key, value, *others, **options)

    monkeypatch.setattr(forward, "tree_attention", only_float32)
    config = TinyConfig(save_tiny_model(tmp_path), dtype="float32", autocast_dtype=autocast)
    learner = RAPOTorchLearner(config=config, module_spec=config.get_multi_rl_module_spec())
    learner.build()
    assert learner.policy.attention is found


# of the probe's row: a prompt of 8 tokens, 4 that two responses share, and 5 of each of three responses
@pytest.mark.parametrize(("by", "seen"), [((0, 40), (0, 40)), ((12, 17), (17, 27)), ((22, 27), (12, 22))], ids=str)
def test_a_leak_that_low_precision_hides_is_found(
    monkeypatch: pytest.MonkeyPatch, by: tuple[int, int], seen: tuple[int, int]
) -> None:
    """Tokens see a little of all, or of later or earlier siblings alone: less than what bfloat16 rounds away."""
    right = tree_attention

    def leaks(module: Any, query: torch.Tensor, *others: Any, **options: Any) -> Any:
        output = right(module, query, *others, **options)[0].clone()
        output[:, slice(*by)] += 0.02 * query[:, :, slice(*seen)].mean(2)[:, None]
        return output, None

    monkeypatch.setattr(forward, "tree_attention", leaks)
    model = tiny_model("llama", torch.float32).eval()
    probe = Probe(model, "cpu", torch.bfloat16)
    reason = probe.reason_against(RowAttention.BLOCKS, probe.values_of_separate_sequences())
    assert "a response changes by" in str(reason)


def test_a_pass_that_fails_leaves_the_attention_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", torch.float32)
    own = model.config._attn_implementation
    monkeypatch.setattr(Probe, "_values", lambda *arguments: exec("raise MemoryError"))
    with pytest.raises(MemoryError):
        row_attention(model)
    assert model.config._attn_implementation == own != "eager"


def within_blocks(mask: Any) -> Any:
    """The mask, if keys in other blocks than the query's are forgotten."""
    visible = mask.mask_mod
    mask.mask_mod = lambda batch, head, query, key: visible(batch, head, query, key) & (query // BLOCK == key // BLOCK)
    return mask


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("spoil", "told"), [(lambda mask: mask, None), (within_blocks, "hidden states differ by")], ids=["right", "wrong"]
)
def test_flex_is_tried_on_a_row_of_several_blocks(
    monkeypatch: pytest.MonkeyPatch, spoil: Any, told: str | None, dtype: torch.dtype | None
) -> None:
    # as it is, FlexAttention computes on the CPU what it would compiled, and its gradients too, if it is let
    monkeypatch.setattr("transformers.integrations.flex_attention.torch.compile", lambda function, **options: function)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    monkeypatch.setattr("rapo_rllib.attention.forward.block_mask", lambda *arguments: spoil(block_mask(*arguments)))
    model = tiny_model("llama", torch.float32).eval()
    probe = Probe(model, "cuda", dtype)
    assert probe.rows[True].num_tokens > 2 * BLOCK and block_mask(padded_row(probe.rows[True])).full_kv_num_blocks.any()
    reason = probe.reason_against(RowAttention.FLEX, probe.values_of_separate_sequences())
    assert reason is None if told is None else told in str(reason)
