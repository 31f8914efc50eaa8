"""What is computed again for the backward pass, and that it changes no gradient."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tiny_models import random_groups, tiny_model
from torch._higher_order_ops.wrap import InductorCompiledCallable, inductor_compiled_code
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations import flex_attention

from rapo_rllib.attention.forward import RowAttention, use_attention
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.learner.rl_module import score_row
from rapo_rllib.models.activation_checkpointing import enable_checkpointing
from rapo_rllib.settings import ModelSettings

SETTINGS = ModelSettings(dtype="float64", autocast_dtype=None)


class Calls(TorchDispatchMode):
    """How often each operation ran, compiled code as one."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def step(
    kind: str, attention: RowAttention, checkpointing: bool | str, dtype: torch.dtype = torch.float64
) -> tuple[Counter[str], torch.Tensor]:
    """Calls and gradients of one forward and backward pass."""
    model = tiny_model(kind, dtype).train()
    use_attention(model, attention)
    enable_checkpointing(model, checkpointing)
    (row,) = pack_rows(random_groups([(9, [8, 6, 7])]), 1000)
    with Calls() as calls:
        score_row(model, row, SETTINGS, 1.0, attention)[0].sum().backward()
    return calls.count, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(("kind", "attention"), [("llama", RowAttention.BLOCKS), ("qwen2", RowAttention.MASK)])
def test_selective_repeats_what_is_cheap_and_full_repeats_nearly_all(kind: str, attention: RowAttention) -> None:
    (none, expected), (selective, kept), (full, again) = (step(kind, attention, c) for c in (False, "selective", True))
    dear = ("mm.default", "addmm.default", "_scaled_dot_product_flash_attention_for_cpu.default")
    products, repeated = (sum(count[name] for name in dear) for count in (none, full))
    assert sum(selective[name] for name in dear) == products < repeated
    norms = "rsqrt.default"
    assert selective[norms] == full[norms] > none[norms] > 0
    torch.testing.assert_close(kept, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(again, expected, rtol=1e-12, atol=1e-12)


def test_selective_keeps_flex_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is: on the CPU it has gradients only if it is let, and compiled none."""
    monkeypatch.setattr("transformers.integrations.flex_attention.torch.compile", lambda function, **options: function)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    steps = [step("llama", RowAttention.FLEX, kind, torch.float32) for kind in (False, "selective", True)]
    layers = 2
    assert [count["flex_attention"] for count, _ in steps] == [layers, layers, 2 * layers]
    assert [count["flex_attention_backward"] for count, _ in steps] == [layers] * 3
    for _, gradients in steps[1:]:
        torch.testing.assert_close(gradients, steps[0][1])


SIN = InductorCompiledCallable(lambda inputs: (inputs[0].sin(),))


class Compiled(torch.autograd.Function):
    """An attention as a compiled one appears where ``wrap_inductor_compiled_regions`` is set: one operation each way."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(query)
        return inductor_compiled_code(SIN, [query])[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0].cos()


def test_selective_keeps_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        return Compiled.apply(query) * key.mean() * value.mean()

    monkeypatch.setattr(flex_attention, "compile_friendly_flex_attention", attend)
    monkeypatch.setattr("torch._inductor.config.wrap_inductor_compiled_regions", False)
    steps = [step("llama", RowAttention.FLEX, kind, torch.float32) for kind in (False, "selective", True)]
    assert [count["inductor_compiled_code"] for count, _ in steps] == [2, 2, 4]
    assert torch._inductor.config.wrap_inductor_compiled_regions
    for _, gradients in steps[1:]:
        torch.testing.assert_close(gradients, steps[0][1])


@pytest.mark.slow
def test_selective_keeps_what_inductor_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that it makes for the CPU has no FlexAttention with gradients: another function stands for it."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        return query.sin() * key.mean() * value.mean()

    monkeypatch.setattr(flex_attention, "flex_attention", attend)
    monkeypatch.setattr(flex_attention.WrappedFlexAttention, "_instance", None)
    (selective, kept), (full, again) = (step("llama", RowAttention.FLEX, kind, torch.float32) for kind in ("selective", True))
    assert (selective["inductor_compiled_code"], full["inductor_compiled_code"]) == (4, 6)  # of two layers, each way
    torch.testing.assert_close(kept, again)
