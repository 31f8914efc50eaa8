"""vLLM's own weight transfer, driven as on GPUs; the bytes go through a file where there NCCL or CUDA IPC carry them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny_model
from vllm.distributed.weight_transfer import factory
from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from rapo_rllib.errors import EngineError
from rapo_rllib.settings import EngineSettings
from rapo_rllib.weights.vllm_transfer import EnvRunnerClient, PolicySource, transfer


@dataclass
class FileInit(WeightTransferInitInfo):
    packed: bool = True


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    path: str


class FileReceiver(NCCLWeightTransferEngine):
    """The worker's end: everything as NCCL's, but for where the tensors come from."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        assert init_info.packed

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.model.load_weights(load_file(update_info["path"]).items())


class FileSender(TrainerWeightTransferEngine):
    """The trainer's end."""

    init_info_cls = IPCTrainerInitInfo
    folder: Path

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> FileSender:
        client.init_weight_transfer_engine({"packed": init_info.packed})
        return cls(client=client, source=source, is_sender=init_info.is_sender)

    def send_weights(self) -> None:
        path = str(self.folder / "weights.safetensors")
        save_file(dict(self.source), path)
        self.client.start_weight_update()
        self.client.update_weights({"path": path})
        self.client.finish_weight_update()


@pytest.fixture
def through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileSender.folder = tmp_path
    monkeypatch.setitem(factory.WeightTransferEngineFactory._registry, "ipc", lambda: FileReceiver)
    monkeypatch.setitem(factory.WeightTransferTrainerFactory._registry, "ipc", lambda: FileSender)


@pytest.fixture
def model(tmp_path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    folder = save_tiny_model(tmp_path / "model", head_dim=32)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture
def engine(model: Any, tmp_path: Path, through_a_file: None) -> Iterator[Any]:
    from rapo_rllib.rollout.vllm.engine import VLLMEngine

    settings = EngineSettings(dtype="float32", max_num_seqs=4, enforce_eager=True, kv_cache_gib=0.05)
    engine = VLLMEngine(str(tmp_path / "model"), settings, max_model_len=64, weight_transfer="ipc")
    yield engine
    engine.close()


@torch.no_grad()
def logprobs(model: Any, sequence: Sequence[int]) -> list[float]:
    ids = torch.tensor([sequence])
    log_p = torch.log_softmax(model(ids).logits[0, :-1], -1)
    return log_p.gather(-1, ids[0, 1:, None])[:, 0].tolist()


def test_every_version_arrives(engine: Any, model: Any) -> None:
    learner, sequence = copy.deepcopy(model), [3, 1, 4, 1, 5, 9]

    def call(method: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        (own,) = arguments
        engine.weights.call_workers(method, own)

    source = PolicySource(lambda: dict(learner.named_parameters()), torch.float32)
    sender = transfer("ipc", call, 1, 1, source, rank=0)
    for version in (1, 2):
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.mul_(1.3)
        sender.send_weights()
        engine.weights.confirm(version)
        assert engine.policy_version == version
        assert engine.score([sequence])[0] == pytest.approx(logprobs(learner, sequence), abs=1e-4)
        assert engine.score([sequence])[0] != pytest.approx(logprobs(model, sequence), abs=1e-2)


def test_a_transfer_that_breaks_off_leaves_an_engine_that_computes_nothing(engine: Any) -> None:
    engine.weights.call_workers("init_weight_transfer_engine", {"init_info": {"packed": True}})
    engine.weights.call_workers("start_weight_update", {})
    with pytest.raises(EngineError, match="has not finished receiving weights; it computes nothing"):
        engine.score([[3, 1, 4]])


def test_what_is_sent() -> None:
    weights = {"w": torch.tensor([1.0, 1 / 3], requires_grad=True), "count": torch.tensor([2])}
    source = PolicySource(lambda: weights, torch.bfloat16)
    sent = dict(source)
    assert torch.equal(sent["w"], weights["w"].detach().bfloat16()) and not sent["w"].requires_grad
    assert torch.equal(sent["count"], weights["count"])
    assert [(m.name, m.dtype, m.shape) for m in source.metadata()] == [
        ("w", torch.bfloat16, (2,)),
        ("count", torch.int64, (1,)),
    ]
    weights["w"] = torch.zeros(2)
    assert torch.equal(dict(source)["w"], torch.zeros(2).bfloat16())  # the present weights, at every transfer


def test_the_buffer_of_ipc_holds_the_largest_tensor(through_a_file: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding of Qwen2.5-7B, 152,064 tokens of 3,584 numbers in bfloat16, is larger than vLLM's buffer of 1 GiB."""
    given: list[IPCTrainerInitInfo] = []
    monkeypatch.setattr(FileSender, "trainer_init", lambda init_info, client, source: given.append(init_info))
    for vocabulary in (1000, 152064):
        with torch.device("meta"):
            weights = {"embedding": torch.empty(vocabulary, 3584), "norm": torch.empty(3584)}
        source = PolicySource(lambda weights=weights: weights, torch.bfloat16)
        transfer("ipc", lambda method, arguments: None, 1, 1, source, rank=0)
    assert [info.packed_buffer_size_bytes for info in given] == [2**30, 1_089_994_752]


def test_every_engine_has_its_own_ranks() -> None:
    calls: list[tuple[str, list[Mapping[str, Any]]]] = []
    client = EnvRunnerClient(lambda method, arguments: calls.append((method, list(arguments))), num_engines=3, workers=2)
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
    client.update_weights({"names": ["w"]})
    (_, infos), (method, updates) = calls
    assert [info["init_info"]["rank_offset"] for info in infos] == [1, 3, 5]
    assert (method, updates) == ("update_weights", [{"update_info": {"names": ["w"]}}] * 3)
