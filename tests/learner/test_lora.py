"""LoRA: what trains, what stays, what is exported, and that every way through the model sees the adapters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_learner
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from tiny_learner import trajectory_groups
from tiny_models import random_groups, tiny_model

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.errors import WeightSyncError
from rapo_rllib.learner.adapters import Adapters
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.learner.rl_module import score_row
from rapo_rllib.models.activation_checkpointing import enable_checkpointing
from rapo_rllib.models.loading import load_causal_lm
from rapo_rllib.models.lora import merged_weights
from rapo_rllib.settings import LoraSettings, ModelSettings, ObjectiveSettings
from rapo_rllib.weights.packing import unpack_weights

EXACT = ModelSettings(dtype="float64", autocast_dtype=None, logits_chunk_size=5)
LORA = LoraSettings(rank=4, alpha=8)
IDS = torch.tensor([[4, 5, 6, 7, 30, 9]])


def build(folder: Path, **settings: Any) -> RAPOTorchLearner:
    return tiny_learner.build(folder, **{"lora": LORA, **settings})


def batch(**objective: Any) -> TrainingBatch:
    return TrainingBatch.from_groups(trajectory_groups(), ObjectiveSettings(**objective))


@torch.no_grad()
def move(adapters: Adapters, size: float = 0.1) -> None:
    """Adapters far from zero."""
    generator = torch.Generator().manual_seed(1)
    for tensor in adapters.tensors().values():
        tensor += size * torch.randn(tensor.shape, generator=generator).to(tensor)


def frozen(learner: RAPOTorchLearner) -> dict[str, torch.Tensor]:
    return {name: p.clone() for name, p in learner.policy.language_model.named_parameters() if not p.requires_grad}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_alone_train_in_float32(folder: Path, dtype: str) -> None:
    learner = build(folder, dtype=dtype, lr=1e-6)
    tensors, base = learner.policy.adapters.tensors(), frozen(learner)
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    (optimizer,) = learner._named_optimizers.values()
    assert type(optimizer) is torch.optim.AdamW  # no masters: nothing that trains is rounded
    assert set(map(id, optimizer.param_groups[0]["params"])) == set(map(id, tensors.values()))
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert {value.dtype for value in base.values()} == {getattr(torch, dtype)}
    for _ in range(2):  # B starts at 0: A has no gradient in the first step
        learner.update(training_data=batch())
    assert same(base, frozen(learner))
    assert all((before[name] != tensor).float().mean() > 0.5 for name, tensor in tensors.items())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3_text"])
def test_every_way_through_the_model_sees_the_adapters(kind: str) -> None:
    """Logprobs are those of one model with merged weights, gradients of adapters those of separate sequences."""
    plain, groups = tiny_model(kind).train(), random_groups([(9, [8, 6, 7]), (4, [3, 5])])
    targets = {"target_modules": ("lm_head", "q_proj", "down_proj")} if kind == "qwen2" else {}  # whose head is not tied

    def scores(attention: RowAttention, checkpointing: bool | str = False) -> tuple[torch.Tensor, torch.Tensor, Adapters]:
        model = tiny_model(kind).train()
        adapters = Adapters(model, LoraSettings(rank=4, alpha=8, **targets))
        move(adapters)
        use_attention(model, attention)
        enable_checkpointing(model, checkpointing)
        (row,) = pack_rows(groups, 1000, attention is not RowAttention.UNSHARED)
        logprobs, _ = score_row(model, row, EXACT, 0.7, attention)
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        return logprobs.detach(), torch.cat([t.grad.flatten() for t in adapters.tensors().values()]), adapters

    expected, gradients, adapters = scores(RowAttention.UNSHARED)
    assert gradients.ne(0).double().mean() > 0.99
    (row,) = pack_rows(groups, 1000, False)
    base, _ = score_row(plain, row, EXACT, 0.7, RowAttention.UNSHARED)
    plain.load_state_dict(adapters.merged_state())
    merged, _ = score_row(plain, row, EXACT, 0.7, RowAttention.UNSHARED)
    torch.testing.assert_close(expected, merged, rtol=1e-5, atol=1e-5)
    assert (expected - base).abs().mean() > 0.01
    for checkpointing, attention in {
        False: RowAttention.BLOCKS,
        True: RowAttention.MASK,
        "selective": RowAttention.BLOCKS,
    }.items():
        logprobs, own, _ = scores(attention, checkpointing)
        torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(own, gradients, rtol=1e-4, atol=1e-5)


def test_the_reference_is_the_same_model_without_adapters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build(folder, kl_coeff=0.1, lr=1e-2)
    base = load_causal_lm(learner.config.settings.model).eval()
    monkeypatch.setattr("rapo_rllib.learner.scoring.load_causal_lm", lambda *_: pytest.fail("a second model was loaded"))
    learner.update(training_data=batch(kl_coeff=0.1))
    move(learner.policy.adapters)
    row = learner.rows.scored(batch(kl_coeff=0.1).minibatches)[0][0]
    use_attention(base, learner.policy.attention)
    with torch.no_grad():
        expected, _ = score_row(base, row, learner.config.settings.model, 1.0, learner.policy.attention)
        policy = learner.policy.forward_train({"row": row})["logprobs"]
    assert torch.equal(row.reference_logprobs, expected)
    assert (policy - expected).abs().mean() > 0.01  # and afterwards the adapters are on again
    assert float(learner.update(training_data=batch(kl_coeff=0.1))[DEFAULT_MODULE_ID]["kl"].peek()) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpoints_hold_adapters_alone_and_continue_bit_for_bit(folder: Path, tmp_path: Path, dtype: str) -> None:
    learner, restored = build(folder, dtype=dtype), build(folder, dtype=dtype)
    for _ in range(2):
        learner.update(training_data=batch())
    state = learner.get_state()["rl_module"][DEFAULT_MODULE_ID]
    assert set(state) == set(learner.policy.adapters.tensors()) and {tag for tag, _ in state.values()} == {"float32"}
    learner.save_training_state(str(tmp_path))
    restored.load_training_state(str(tmp_path), 0)
    for one in (learner, restored):
        one.update(training_data=batch())
    assert same(unpack_weights(learner.policy.get_state()), unpack_weights(restored.policy.get_state()))


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)], ids=["full", "lora"])
def test_a_state_that_does_not_fit_is_refused(folder: Path, lora: LoraSettings | None) -> None:
    learner = build(folder, lora=lora)
    state = learner.policy.get_state()
    name, before = max(state), unpack_weights(state)
    shape = list(before[name].shape)
    without = {key: value for key, value in state.items() if key != name}
    reshaped = {**state, name: ("float32", np.zeros((2, 3), np.float32))}
    for wrong, told in (
        (without, f"{name!r} for one, which is missing there and {shape} here"),
        ({**state, "x": state[name]}, f"'x' for one, which is {shape} there and missing here"),
        (reshaped, f"{name!r} for one, which is [2, 3] there and {shape} here"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(f"1 weights do not match, {told}")):
            learner.policy.set_state(wrong)
    assert same(unpack_weights(learner.policy.get_state()), before)


def test_engines_get_adapters_unrounded_and_are_expected_to_merge_them(folder: Path) -> None:
    learner = build(folder)
    move(learner.policy.adapters)
    own = {name: tensor.detach() for name, tensor in learner.policy.adapters.tensors().items()}
    sent = learner.get_state(components="rl_module", inference_only=True)["rl_module"][DEFAULT_MODULE_ID]
    assert same(unpack_weights(sent), own) and same(dict(learner.weights.publish_local().tensors), own)
    assert learner.weights.publish_local().num_bytes == sum(4 * tensor.numel() for tensor in own.values())
    # what an engine makes of them: the base from disk, merged, rounded
    model = load_causal_lm(learner.config.settings.model)
    base = {name: value.clone() for name, value in model.state_dict().items()}
    weights = dict(merged_weights(base.items(), own, LORA.scaling, torch.float32, torch.device("cpu")))
    model.load_state_dict({name: value.bfloat16() for name, value in weights.items()})
    logits = model(IDS).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(-1, IDS[0, 1:, None])[:, 0]
    before = unpack_weights(learner.policy.get_state())
    assert learner.score(IDS.tolist())[0] == pytest.approx(expected.tolist(), abs=1e-5)
    assert same(before, unpack_weights(learner.policy.get_state()))


def test_an_adapter_without_a_weight_is_refused(folder: Path) -> None:
    own = dict(build(folder).policy.adapters.tensors())
    weights = load_causal_lm(ModelSettings(str(folder))).state_dict().items()
    renamed = ((name.replace("q_proj", "query"), value) for name, value in weights)
    with pytest.raises(
        WeightSyncError, match=r"2 adapters belong to no weight .* 'model\.layers\.0\.self_attn\.q_proj' for one"
    ):
        list(merged_weights(renamed, own, 1.0, torch.float32, torch.device("cpu")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@torch.no_grad()
def test_both_exports_load_again_and_the_live_model_stays(folder: Path, tmp_path: Path, dtype: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner = build(folder, dtype=dtype)
    move(learner.policy.adapters)
    model = learner.policy.language_model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logits = model(IDS).logits
    learner.weights.export(str(tmp_path / "merged"))
    learner.weights.export(str(tmp_path / "adapters"), merged=False)
    assert same(before, model.state_dict()) and torch.equal(model(IDS).logits, logits)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=dtype)
    base = load_causal_lm(learner.config.settings.model)
    far = float((base(IDS).logits - logits).abs().mean())
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapters")
    tolerance = 1e-5 if dtype == "float32" else 0.05
    for loaded in (merged, adapted):
        assert float((loaded(IDS).logits - logits).abs().mean()) < tolerance < far / 2
        assert AutoTokenizer.from_pretrained(tmp_path / ("merged" if loaded is merged else "adapters")).eos_token == "t2"
    assert not list((tmp_path / "adapters").glob("model*")) and merged.config.use_cache
    assert "lora" not in str(merged).lower()


@pytest.mark.parametrize(
    ("kind", "targets", "message"),
    [
        (
            "llama",
            ("q_proj", "qproj"),
            "'qproj' names no linear layers of this model, which are down_proj, gate_proj, k_proj",
        ),
        ("llama", ("embed_tokens",), "'embed_tokens' names no linear layers"),
        ("llama", ("lm_head",), "'lm_head' shares its weight with the embedding"),
        ("gpt2", "all-linear", "a GPT2LMHeadModel has no linear layers; leave model.lora out"),
    ],
)
def test_wrong_targets_are_named(kind: str, targets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"model.lora.target_modules.*{message}"):
        Adapters(tiny_model(kind), LoraSettings(target_modules=targets))


def test_scaling_is_that_of_peft() -> None:
    from peft.tuners.lora import LoraLayer

    for settings in (LoraSettings(rank=4, alpha=8), LoraSettings(rank=4, alpha=4)):
        model = tiny_model()
        Adapters(model, settings)
        scalings = {module.scaling["default"] for module in model.modules() if isinstance(module, LoraLayer)}
        assert scalings == {settings.scaling}
