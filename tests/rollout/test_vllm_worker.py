"""What our worker changes about vLLM's loading of weights, on vLLM's own loader."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Messages of the logger of vLLM's loader."""
    messages: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: messages.append(record.getMessage()))
    logger = logging.getLogger("vllm.model_executor.models.utils")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.WARNING)  # a config that was checked here may have silenced vLLM
    yield messages
    logger.setLevel(before)
    logger.removeHandler(handler)


def test_rounding_to_the_engines_dtype_is_not_warned_of(said: list[str]) -> None:
    from vllm.model_executor.models.utils import AutoWeightsLoader, logger

    import rapo_rllib.rollout.vllm.worker  # noqa: F401

    model = torch.nn.Linear(4, 2, bias=False, dtype=torch.bfloat16)
    weights = torch.rand(2, 4)
    assert AutoWeightsLoader(model).load_weights([("weight", weights)]) == {"weight"}
    assert torch.equal(model.weight, weights.to(torch.bfloat16))
    assert said == []
    logger.warning("Attempted to do something else")
    assert said == ["Attempted to do something else"]
