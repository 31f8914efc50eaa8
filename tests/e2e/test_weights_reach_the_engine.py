"""The canary, on a real learner and a real engine: a sync that went wrong is caught by that sync."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from jobs import small_config

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.learner.rl_module import LM_HEAD

pytestmark = pytest.mark.e2e

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def algorithm(ray_session: None, small_model: str) -> Iterator[Any]:
    algorithm = small_config(small_model).build_algo()
    yield algorithm
    algorithm.stop()


def learner_parameters(algorithm: Any) -> dict[str, torch.nn.Parameter]:
    return dict(algorithm.get_module().language_model.named_parameters())


def move(algorithm: Any, names: tuple[str, ...]) -> None:
    """What an optimiser step does to the weights, and RLlib to their version."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in learner_parameters(algorithm).items():
            if any(part in name for part in names):
                parameter += 0.3 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    algorithm.learner_group._learner._weights_seq_no += 1


@pytest.fixture
def loading(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``loading(change)`` makes the engine receive ``change(weights)``; afterwards a clean sync holds again."""
    engine = algorithm.env_runner.engine
    original = engine.weights.load

    def inject(change: Any) -> None:
        def load(weights: Mapping[str, torch.Tensor], version: int) -> None:
            changed = change(dict(weights))
            if changed is None:
                engine.weights.version = version
            else:
                original(changed, version)

        monkeypatch.setattr(engine.weights, "load", load)

    yield inject
    monkeypatch.undo()
    assert algorithm.sync_engines().mean_difference < 1e-3


def test_a_sync_after_an_update_of_everything_holds(algorithm: Any) -> None:
    held = algorithm.env_runner.engine.score([[1, 2, 3, 4]])
    move(algorithm, ("",))
    report = algorithm.sync_engines()
    assert report.mean_difference < 1e-3
    assert report.version == algorithm.env_runner.policy_version
    assert algorithm.env_runner.engine.score([[1, 2, 3, 4]]) != held


def test_a_sync_after_the_tied_embedding_moved_holds(algorithm: Any) -> None:
    move(algorithm, (EMBEDDING,))
    assert algorithm.sync_engines().mean_difference < 1e-3


def test_a_dropped_sync_is_caught(algorithm: Any, loading: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    move(algorithm, ("mlp",))
    monkeypatch.setattr(algorithm.env_runner.engine.weights, "load", lambda weights, version: None)
    with pytest.raises(WeightSyncError, match="holds weight version"):
        algorithm.sync_engines()


def test_a_sync_that_only_claims_the_version_is_caught(algorithm: Any, loading: Any) -> None:
    move(algorithm, ("mlp",))
    loading(lambda weights: None)
    with pytest.raises(WeightSyncError, match="stale or partial"):
        algorithm.sync_engines()


def test_a_partial_sync_is_caught(algorithm: Any, loading: Any) -> None:
    move(algorithm, ("mlp",))
    loading(lambda weights: {name: value for name, value in weights.items() if "layers.3.mlp" not in name})
    with pytest.raises(WeightSyncError, match="received nothing"):
        algorithm.sync_engines()


def test_old_values_under_new_names_are_caught(algorithm: Any, loading: Any) -> None:
    old = {name: value.detach().clone() for name, value in learner_parameters(algorithm).items()}
    move(algorithm, ("mlp",))
    loading(lambda weights: {name: old.get(name, value) if "mlp" in name else value for name, value in weights.items()})
    with pytest.raises(WeightSyncError, match="stale or partial"):
        algorithm.sync_engines()


def test_a_stale_lm_head_is_caught(algorithm: Any, loading: Any) -> None:
    old = learner_parameters(algorithm)[EMBEDDING].detach().clone()
    move(algorithm, (EMBEDDING,))
    loading(lambda weights: {**weights, LM_HEAD: old})
    with pytest.raises(WeightSyncError, match="stale or partial"):
        algorithm.sync_engines()
