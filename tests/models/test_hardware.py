"""Memory that was freed goes back to whoever shares the machine or the GPU."""

from __future__ import annotations

import pytest
import torch

from rapo_rllib.models.devices import return_free_memory


@pytest.mark.parametrize("in_use", [True, False])
def test_pytorch_gives_up_what_it_keeps_of_a_gpu_that_it_uses(monkeypatch: pytest.MonkeyPatch, in_use: bool) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    return_free_memory()
    assert len(emptied) == in_use
