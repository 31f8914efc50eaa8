"""A version of the weights goes to an engine by the nearest way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import ray
import torch
from safetensors.torch import load_file

from rapo_rllib.weights.digest import digest
from rapo_rllib.weights.publisher import Publication, WeightPublisher, WeightSender, this_node

WEIGHTS = {"w": torch.tensor([1.0, 1 / 3]), "b": torch.ones(2, 2)}
ROUNDED = {name: tensor.bfloat16() for name, tensor in WEIGHTS.items()}


class Notes:
    """Weights of an engine, which note what they were given."""

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.way, self.weights, self.version = "tensors", dict(weights), version

    def load_file(self, path: str, version: int) -> None:
        self.way, self.weights, self.version = "file", load_file(path), version

    def confirm(self, version: int) -> None:
        self.way, self.weights, self.version = "sent", {}, version


def given(publication: Publication) -> Notes:
    engine = Notes()
    publication.load_into(engine)
    assert engine.version == publication.version
    return engine


def test_an_engine_that_was_restarted_is_connected_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actor has the same handle as before."""
    monkeypatch.setattr("rapo_rllib.weights.vllm_transfer.transfer", lambda *arguments: None)
    sender = WeightSender("nccl", {"a": "actor 1", "b": "actor 2"}, 1, dict, torch.bfloat16, 0)
    assert sender.reaches({"a": "actor 1", "b": "actor 2"})
    assert not sender.reaches({"a": "actor 1", "c": "actor 2"}) and not sender.reaches({"a": "actor 1"})


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_on_the_same_machine_by_shared_memory(ray_session: None) -> None:
    publisher = WeightPublisher(torch.bfloat16)
    first = publisher.publish(WEIGHTS, 1, shared_memory=True, object_store=False)
    engine = given(first)
    assert engine.way == "file" and same(engine.weights, ROUNDED)
    assert (first.num_bytes, first.packed, first.node) == (12, None, this_node())
    assert first.digests == {name: digest(tensor) for name, tensor in ROUNDED.items()}
    second = publisher.publish({name: 2 * w for name, w in WEIGHTS.items()}, 2, shared_memory=True, object_store=True)
    assert second.path == first.path  # the memory is used again
    engine = given(second)
    assert engine.way == "file" and same(engine.weights, {name: 2 * tensor for name, tensor in ROUNDED.items()})


def test_on_another_machine_by_the_object_store(ray_session: None) -> None:
    publication = WeightPublisher(torch.bfloat16).publish(WEIGHTS, 3, shared_memory=True, object_store=True)
    elsewhere = replace(publication, node="another")  # as an engine there sees it
    engine = given(elsewhere)
    assert engine.way == "tensors" and same(engine.weights, ROUNDED)
    with pytest.raises(RuntimeError, match="weight version 3 was published for machine another only"):
        given(replace(elsewhere, packed=None))


def test_a_reference_crosses_processes_without_its_weights(ray_session: None) -> None:
    publication = WeightPublisher(torch.float32).publish(WEIGHTS, 4, shared_memory=False, object_store=True)
    assert len(ray.cloudpickle.dumps(publication)) < 2000

    @ray.remote
    def load(publication: Publication) -> float:
        return float(ray.get(publication.packed)["b"][1].sum())

    assert ray.get(load.remote(publication)) == 4.0


def test_in_the_same_process_the_tensors_themselves() -> None:
    engine = given(Publication(5, this_node(), tensors=WEIGHTS))
    assert engine.way == "tensors" and engine.weights["w"] is WEIGHTS["w"]
    assert given(Publication(6, this_node(), sent=True)).way == "sent"
