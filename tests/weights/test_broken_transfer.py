"""A transfer between GPUs that an engine leaves comes to an end: nobody waits for ever, and engines are connected anew.

Engines are real actors that die or fall silent. What blocks is an event in the place of NCCL's broadcast, which its abort ends.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.rllib.utils.actor_manager import FaultTolerantActorManager
from vllm.distributed.weight_transfer import factory
from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from rapo_rllib.errors import WeightSyncError
from rapo_rllib.learner.ranks import RAPOLearnerGroup
from rapo_rllib.learner.weights import LearnerWeights
from rapo_rllib.weights import sync as weight_sync
from rapo_rllib.weights.canary import Canary
from rapo_rllib.weights.publisher import Publication, WeightSender
from rapo_rllib.weights.sync import Confirmation, WeightSync

WEIGHTS = {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(4)}
SCORES = [[-1.0, -2.0]]
JOIN = "init_weight_transfer_engine"


@ray.remote(max_restarts=-1, max_task_retries=0)
class Engine:
    """Takes weights, unless it is to die or to wait for ever as one does whose peer is gone; after a restart it is healthy."""

    def __init__(self, number: int, fault: str, method: str) -> None:
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._fault, self._method = "" if restarted else fault, method
        self._name = f"env runner {number} ({uuid.uuid4().hex})"

    def call_engine(self, method: str, arguments: Any) -> None:
        if method == self._method and self._fault == "dies":
            os._exit(1)
        if method == self._method and self._fault == "waits":
            time.sleep(3600)

    def engine_name(self) -> str:
        return self._name

    def apply(self, func: Any, *arguments: Any, **options: Any) -> Any:
        return func(self, *arguments, **options)

    def ping(self) -> str:
        return "pong"

    def load_policy(self, publication: Publication, sequences: Any) -> Confirmation:
        return Confirmation(publication.version, SCORES, 0.0, self._name)


class Broadcast(TrainerWeightTransferEngine):
    """As vLLM's for NCCL: engines join and receive in a thread, while the sender waits where all have to arrive."""

    init_info_cls = NCCLTrainerInitInfo
    sent: list[str]

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> Broadcast:
        made, joined = cls(client=client, source=source), threading.Event()
        made.ended, made.sent = threading.Event(), []

        def join() -> None:
            client.init_weight_transfer_engine({})
            joined.set()

        with ThreadPoolExecutor(max_workers=1) as thread:
            joins = thread.submit(join)
            if not joined.wait(60):
                raise TimeoutError("nobody ends the meeting")
            joins.result()
        return made

    def send_weights(self) -> None:
        self.client.start_weight_update()
        thread = ThreadPoolExecutor(max_workers=1)
        received = thread.submit(self._received)
        for name, _ in self.source:
            self.sent.append(name)
            if not self.ended.wait(60):
                raise TimeoutError("nothing ends the broadcast")
            if self.broken:
                break
        thread.shutdown(wait=False)
        received.result()

    broken = False

    def _received(self) -> None:
        self.client.update_weights({})
        self.ended.set()

    def shutdown(self) -> None:
        self.broken = True
        self.ended.set()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(factory.WeightTransferTrainerFactory._registry, "nccl", lambda: Broadcast)

    def sender(engines: dict[str, Any], timeout_s: float = 60.0, weights: Any = WEIGHTS) -> WeightSender:
        return WeightSender("nccl", engines, 1, lambda: weights, torch.float32, 0, timeout_s)

    return sender


@pytest.fixture
def engines(ray_session: None) -> Iterator[Any]:
    made: list[Any] = []

    def start(*faults: str, method: str = "update_weights") -> dict[str, Any]:
        made.extend(Engine.options(num_cpus=0).remote(index, fault, method) for index, fault in enumerate(faults, 1))
        ray.get([engine.ping.remote() for engine in made])
        return {str(index): engine for index, engine in enumerate(made, 1)}

    yield start
    for engine in made:
        ray.kill(engine)


def test_healthy_engines_receive(connect: Any, engines: Any) -> None:
    sender = connect(engines("", ""))
    assert sender.send() == 36 and sender._transfer.sent == [*WEIGHTS] and not sender._transfer.broken


def test_an_engine_that_dies_ends_the_transfer_of_all(connect: Any, engines: Any) -> None:
    sender, start = connect(engines("waits", "dies")), time.monotonic()
    with pytest.raises(ray.exceptions.RayActorError):
        sender.send()
    assert time.monotonic() - start < 30
    assert sender._transfer.sent == ["a"]
    assert list(sender._source._left) == []  # the others were gathered: learners with shards do not wait


def test_a_transfer_that_fails_before_the_broadcast_is_shut_down(connect: Any, engines: Any) -> None:
    sender = connect(engines("dies", method="start_weight_update"))
    with pytest.raises(ray.exceptions.RayActorError):
        sender.send()
    assert sender._transfer.broken


def test_engines_keep_one_connection_and_a_replaced_one_is_shut_down(
    connect: Any, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr("rapo_rllib.learner.weights.WeightSender", lambda *given: made.append(WeightSender(*given)) or made[-1])
    policy = SimpleNamespace(engine_tensors=lambda: WEIGHTS, engine_dtype=torch.float32)
    learner = LearnerWeights(policy, 0, 1, lambda: 7)
    first, second, third = engines("", "", "").items()
    training, restarted, evaluation = dict([first, second]), {"a": first[1], "b": second[1]}, dict([third])
    for group in (training, evaluation, training, evaluation, restarted, evaluation, restarted):
        assert learner.send("nccl", group).num_bytes == 36
    assert [list(sender._engines) for sender in made] == [["1", "2"], ["3"], ["a", "b"]]
    assert [sender._transfer.broken for sender in made] == [True, False, False]


def test_an_engine_that_says_nothing_ends_it_in_time(connect: Any, engines: Any) -> None:
    sender = connect(engines("", "waits"), timeout_s=1.0)
    with pytest.raises(Exception, match=r"1 engine\(s\) did not answer update_weights within 1 s"):
        sender.send()


class Gathered(dict[str, torch.Tensor]):
    """Weights that note which of them were asked for, as shards of them are gathered."""

    def items(self) -> Any:
        self.asked: list[str] = []
        for name, tensor in super().items():
            self.asked.append(name)
            yield name, tensor


@pytest.mark.parametrize(
    ("faults", "timeout_s", "told"),
    [(("waits", "dies"), 60.0, "the engines did not connect: .* actor"), (("", "waits"), 1.0, "not connect.* within 1 s")],
)
def test_an_engine_that_does_not_join_ends_the_connecting(
    connect: Any, engines: Any, faults: tuple[str, ...], timeout_s: float, told: str
) -> None:
    weights, start = Gathered(WEIGHTS), time.monotonic()
    with pytest.raises(WeightSyncError, match=f"(?s){told}"):
        connect(engines(*faults, method=JOIN), timeout_s, weights)
    assert time.monotonic() - start < 30
    assert weights.asked == ["a", "b", "c"]  # learners with shards do not wait


def test_what_connects_too_late_is_shut_down(connect: Any, engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go, broken = threading.Event(), threading.Event()

    def trainer_init(init_info: Any, **given: Any) -> Any:
        assert go.wait(60)
        return SimpleNamespace(shutdown=broken.set)

    monkeypatch.setattr(Broadcast, "trainer_init", trainer_init)
    with pytest.raises(WeightSyncError, match="were not connected within 1 s"):
        connect(engines(""), timeout_s=1.0)
    assert not broken.is_set()
    go.set()
    assert broken.wait(10)


def test_an_error_of_connecting_is_one_of_the_sync(connect: Any, engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def trainer_init(init_info: Any, **given: Any) -> Any:
        raise RuntimeError("no route to the host")

    monkeypatch.setattr(Broadcast, "trainer_init", trainer_init)
    with pytest.raises(WeightSyncError, match="the engines did not connect: no route to the host"):
        connect(engines(""))


@pytest.mark.parametrize(
    ("faults", "method"), [(("waits", "dies"), "update_weights"), (("", "dies"), "update_weights"), (("waits", "dies"), JOIN)]
)
def test_all_engines_are_restarted_and_get_the_version(
    connect: Any, engines: Any, faults: tuple[str, ...], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_sync, "_SILENCE_S", 2.0)
    actors = list(engines(*faults, method=method).values())
    manager = FaultTolerantActorManager(actors, init_id=1)
    group = SimpleNamespace(
        local_env_runner=None,
        num_remote_env_runners=lambda: len(actors),
        healthy_worker_ids=manager.healthy_actor_ids,
        probe_unhealthy_env_runners=lambda: manager.probe_unhealthy_actors(timeout_seconds=10, mark_healthy=True),
        _worker_manager=manager,
    )

    def send(transfer: str, handles: Any) -> Publication:
        return Publication(7, connect(handles).send(), sent=True)

    learner = SimpleNamespace(score=lambda sequences: SCORES, weights=SimpleNamespace(send=send))

    on_all = partial(RAPOLearnerGroup.on_all, SimpleNamespace(is_local=True, _learner=learner))
    learners = SimpleNamespace(is_local=False, on_all=on_all)
    report = WeightSync(Canary([[1, 2, 3]], exact=False), "nccl", timeout_s=60.0).run(learners, group)
    assert (report.version, report.num_engines, report.num_restarts) == (7, 2, 2)
