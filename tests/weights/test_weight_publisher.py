"""A version of the weights goes to an engine by the nearest way."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import ray
import torch

from rapo_rllib.weights.packing import unpack_weights
from rapo_rllib.weights.publisher import Publication, WeightSender, publish

WEIGHTS = {"w": torch.tensor([1.0, 1 / 3]), "b": torch.ones(2, 2)}


class Notes:
    """Weights of an engine, which note what they were given."""

    def __init__(self, publication: Publication) -> None:
        self.weights: dict[str, torch.Tensor] | None = None  # none: they had arrived
        publication.load_into(self)
        assert self.version == publication.version

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.weights, self.version = dict(weights), version

    def confirm(self, version: int) -> None:
        self.version = version


def test_an_engine_that_was_restarted_is_connected_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actor has the same handle as before."""
    monkeypatch.setattr("rapo_rllib.weights.vllm_transfer.transfer", lambda *arguments: None)
    sender = WeightSender("nccl", {"a": "actor 1", "b": "actor 2"}, 1, dict, torch.bfloat16, 0)
    assert sender.reaches({"a": "actor 1", "b": "actor 2"})
    assert not sender.reaches({"a": "actor 1", "c": "actor 2"}) and not sender.reaches({"a": "actor 1"})


def test_in_another_process_by_the_object_store(ray_session: None) -> None:
    """A reference crosses processes, rounded weights do not until they are loaded."""
    publication = publish(WEIGHTS, 3, torch.bfloat16)
    assert publication.num_bytes == 12 and len(ray.cloudpickle.dumps(publication)) < 2000

    @ray.remote
    def loaded(publication: Publication) -> dict[str, torch.Tensor]:
        return unpack_weights(ray.get(publication.packed))

    for weights in (Notes(publication).weights, ray.get(loaded.remote(publication))):
        assert weights is not None and weights.keys() == WEIGHTS.keys()
        assert all(torch.equal(weights[name], tensor.bfloat16()) for name, tensor in WEIGHTS.items())


def test_in_the_same_process_the_tensors_themselves() -> None:
    weights = Notes(Publication(5, tensors=WEIGHTS)).weights
    assert weights is not None and weights["w"] is WEIGHTS["w"]
    assert Notes(Publication(6, sent=True)).weights is None
