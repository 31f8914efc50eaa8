"""Learners that hold shards do what one with all weights does; and when one fails, all raise, and none hangs."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from learner_processes import LearnerProcesses
from ray.rllib.core import DEFAULT_MODULE_ID
from tiny_learner import TinyConfig, trajectory_groups
from tiny_models import save_tiny_model
from torch.distributed.tensor import DTensor

from rapo_rllib.attention import forward, probe
from rapo_rllib.attention.block_attention import tree_attention
from rapo_rllib.attention.forward import RowAttention
from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.errors import LearnerError
from rapo_rllib.learner import rl_module, scoring
from rapo_rllib.learner.fsdp import ShardedModel
from rapo_rllib.learner.learner import RAPOTorchLearner
from rapo_rllib.models.loading import load_causal_lm
from rapo_rllib.settings import LoraSettings, ObjectiveSettings
from rapo_rllib.weights.dtensor import full_tensor
from rapo_rllib.weights.packing import unpack_weights

BATCHES = ((4, 2), (1, 1), (0, 1), (3, 1))  # groups and minibatches: uneven rows, learners without a row, nothing at all
BASE = {"lr": 1e-2, "num_epochs": 2, "dtype": "float64", "grad_clip": 0.5, "weight_decay": 0.1}
METRICS = ("total_loss", "gradient_norm", "entropy", "num_tokens", "num_tokens_computed", "num_steps", "ratio_max", "kl")
SEQUENCES = [[4, 5, 6, 7], [9, 8]]


class TestLearner(RAPOTorchLearner):
    """Freezes weights, uses another attention, or raises, as the ``test`` settings of its config say."""

    __test__ = False
    frozen = ""
    attention: RowAttention | None = None
    fault = ""

    def _map_module_to_device(self, module: Any) -> None:
        language_model = module[DEFAULT_MODULE_ID].unwrapped().language_model
        for name, parameter in language_model.named_parameters():
            if self.frozen and self.frozen in name:
                parameter.requires_grad_(False)
        if self.fault == "layer forward":
            language_model.model.layers[1].mlp.register_forward_hook(self._raise)
        elif self.fault == "layer backward":
            language_model.model.layers[0].mlp.register_full_backward_hook(self._raise)
        super()._map_module_to_device(module)

    def build(self) -> None:
        super().build()
        if self.attention is not None:
            self.policy.language_model.set_attn_implementation("sdpa")
            self.policy.attention = self.attention
        self.calls = 0
        self.armed = bool(self.fault)
        scored = self.rows._old_logprobs

        def old_logprobs(*arguments: Any) -> torch.Tensor | None:
            if self.fault == "scoring":
                self._raise()
            return scored(*arguments)

        self.rows._old_logprobs = old_logprobs

    def _raise(self, *arguments: Any) -> None:
        """At the third call on the second learner, once; of scoring at the first, which is in the first of two minibatches."""
        self.calls = getattr(self, "calls", 0) + 1
        if self._learner_index == 1 and getattr(self, "armed", False) and self.calls >= (1 if self.fault == "scoring" else 3):
            self.armed = False
            raise OSError("a disk is gone")

    def _micro_batch_loss(self, *arguments: Any) -> torch.Tensor:
        if self.fault == "loss":
            self._raise()
        return super()._micro_batch_loss(*arguments)


def learner(
    folder: Path, rank: int = 0, world_size: int = 1, test: dict[str, Any] | None = None, **settings: Any
) -> TestLearner:
    config = TinyConfig(folder, num_learners=world_size, **{**BASE, **settings})
    made = TestLearner(config=config, module_spec=config.get_multi_rl_module_spec())
    made._learner_index = rank
    for name, value in (test or {}).items():
        setattr(made, name, value)
    made.build()
    return made


def batch(count: int, num_minibatches: int, settings: dict[str, Any]) -> TrainingBatch:
    objective = ObjectiveSettings(**{k: v for k, v in settings.items() if k in ObjectiveSettings.__dataclass_fields__})
    return TrainingBatch.from_groups(trajectory_groups(count), objective, num_minibatches)


def updated(made: TestLearner, data: TrainingBatch, rank: int = 0, world_size: int = 1) -> dict[str, float]:
    results = made.update(training_data=data.shard(world_size)[rank][0])
    return {name: float(results[DEFAULT_MODULE_ID][name].peek()) for name in METRICS}


def gathered_weights(made: TestLearner) -> dict[str, torch.Tensor]:
    return unpack_weights(made.policy.get_state(on_all_learners=True))


def train(rank: int, world_size: int, folder: Path, settings: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """A job: several updates; the weights afterwards and the metrics of each."""
    made = learner(folder, rank, world_size, **settings)
    metrics = [updated(made, batch(*size, settings), rank, world_size) for size in BATCHES]
    if settings.get("learner_parallelism") == "fsdp" and world_size > 1:
        (optimizer,) = made._named_optimizers.values()
        held = [*optimizer.param_groups[0]["params"], *(entry["exp_avg"] for entry in optimizer.state.values())]
        assert all(isinstance(tensor, DTensor) for tensor in (*made.policy.parameters(), *held))
        assert sum(p.to_local().numel() for p in made.policy.parameters()) < 0.7 * sum(
            p.numel() for p in made.policy.parameters()
        )
    return gathered_weights(made), metrics


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerProcesses]:
    started = LearnerProcesses(4, tmp_path_factory.mktemp("meetings"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``llama`` ties embedding and LM head, ``qwen2`` does not."""
    return {kind: save_tiny_model(tmp_path_factory.mktemp(kind), kind) for kind in ("llama", "qwen2")}


def results_of(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def slow(*values: Any) -> Any:
    """One more of a kind: the others show most."""
    return pytest.param(*values, marks=pytest.mark.slow)


EQUAL = [
    ("llama", 1, {}),
    ("llama", 2, {"old_logprobs": "learner", "logits_chunk_size": 3}),
    slow("llama", 4, {"gradient_checkpointing": True}),
    ("qwen2", 2, {"gradient_checkpointing": "selective", "kl_coeff": 0.3, "old_logprobs": "learner"}),
    ("qwen2", 4, {"test": {"attention": RowAttention.MASK}}),
    slow("llama", 2, {"test": {"attention": RowAttention.UNSHARED}}),
    ("llama", 2, {"test": {"frozen": "layers.0.self_attn"}, "gradient_checkpointing": True}),
    slow("qwen2", 2, {"test": {"frozen": "embed_tokens"}}),
    ("llama", 2, {"lora": LoraSettings(rank=4), "kl_coeff": 0.3, "gradient_checkpointing": True}),
]


@pytest.mark.parametrize(("kind", "world_size", "settings"), EQUAL)
def test_the_update_equals_that_of_one_learner(
    processes: LearnerProcesses, folders: dict[str, Path], kind: str, world_size: int, settings: dict[str, Any]
) -> None:
    expected, expected_metrics = train(0, 1, folders[kind], settings)
    for parallelism in ("ddp", "fsdp"):
        answers = processes.run(world_size, train, folders[kind], {**settings, "learner_parallelism": parallelism})
        for weights, metrics in results_of(answers):
            for found, wanted in zip(metrics, expected_metrics, strict=True):
                assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)
            assert weights.keys() == expected.keys()
            for name, tensor in expected.items():
                torch.testing.assert_close(weights[name], tensor, rtol=1e-8, atol=1e-10, msg=f"{parallelism}: {name}")
    start = unpack_weights(learner(folders[kind], **settings).policy.get_state())
    moved = [name for name, tensor in expected.items() if not torch.equal(tensor, start[name])]
    assert moved and all(settings.get("test", {}).get("frozen", "nothing") not in name for name in moved)


def without_tokens(kind: str, data: TrainingBatch) -> TrainingBatch:
    """Three minibatches of which the second has no token in the loss, each in another way."""
    first, second, third = data.minibatches
    changes = {
        "no samples": lambda group: replace(group, samples=()),
        "masked": lambda group: replace(
            group, samples=tuple(replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in group.samples)
        ),
        "no weight": lambda group: replace(group, samples=tuple(replace(s, weight=0.0) for s in group.samples)),
    }
    emptied = () if kind == "no group" else tuple(changes[kind](group) for group in second)
    return replace(data, minibatches=(first, emptied, third))


def train_around_nothing(rank: int, world_size: int, folder: Path, kind: str, settings: dict[str, Any]) -> Any:
    """A job: the first update fills the moments of Adam, the second has a minibatch without a token."""
    made = learner(folder, rank, world_size, **settings)
    data = batch(6, 3, settings)
    metrics = [updated(made, one, rank, world_size) for one in (data, without_tokens(kind, data))]
    return gathered_weights(made), metrics


WITH_KL = {"kl_coeff": 0.3, "old_logprobs": "learner"}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("no samples", {}), ("masked", WITH_KL), ("no weight", WITH_KL), ("no group", {"max_tokens_per_micro_batch": 20})],
)
def test_a_minibatch_without_a_token_is_no_step_for_any_number_of_learners(
    processes: LearnerProcesses, folders: dict[str, Path], kind: str, settings: dict[str, Any]
) -> None:
    """Moments and weight decay alone would move the weights; and a learner without rows has the others' gradients."""
    expected, wanted = train_around_nothing(0, 1, folders["llama"], kind, settings)
    assert [one["num_steps"] for one in wanted] == [6, 4]
    for world_size, parallelism in ((2, "ddp"), (3, "ddp"), (2, "fsdp")):
        keys = {**settings, "learner_parallelism": parallelism}
        answers = processes.run(world_size, train_around_nothing, folders["llama"], kind, keys)
        for weights, metrics in results_of(answers):
            assert metrics == [pytest.approx(one, rel=1e-9, abs=1e-12) for one in wanted], parallelism
            for name, tensor in expected.items():
                torch.testing.assert_close(weights[name], tensor, rtol=1e-8, atol=1e-10, msg=f"{parallelism}: {name}")


def begin(rank: int, world_size: int, folders: list[Path], settings: dict[str, Any], whole: bool) -> Any:
    """A job: policy and reference model as they start, and how many weights were whole here at once.

    ``whole``: every learner reads all weights, and shards them where they are.
    """
    most = 0
    take = ShardedModel._take_values

    def take_values(self: ShardedModel, module: torch.nn.Module) -> None:
        nonlocal most
        if not whole:
            take(self, module)
        here = [p.numel() for p in self._root.parameters() if not (p.is_meta or isinstance(p, DTensor))]
        most = max(most, sum(here))

    with ExitStack() as stack:
        stack.enter_context(patch.object(ShardedModel, "_take_values", take_values))
        for caller in (rl_module, scoring) if whole else ():
            stack.enter_context(patch.object(caller, "load_causal_lm", lambda settings, _: load_causal_lm(settings)))
        made = learner(folders[rank], rank, world_size, learner_parallelism="fsdp", **settings)
        made.rows._make_reference()
    if isinstance(made.rows._reference, ShardedModel):
        models = [made.policy.language_model, made.rows._reference._root.language_model]
    else:
        models = [made.policy.language_model]  # with adapters it is both
    return [described(model) for model in models], most


def described(model: Any) -> Any:
    """What makes one model another: numbers and kinds of its tensors, by all the names that they have, and its config."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers())
    values = {name: (t.to_local() if isinstance(t, DTensor) else t).detach().clone() for name, t in named}
    kinds = {name: (t.shape, t.requires_grad) for name, t in named}
    parts = [(name, type(module).__name__, module.training) for name, module in model.named_modules()]
    configs = [{**config.to_dict(), "_name_or_path": ""} for config in (model.config, model.configured)]
    return values, (kinds, parts, configs, model.config._attn_implementation)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {"kl_coeff": 0.3}),
        ("gemma3_text", {"kl_coeff": 0.3, "dtype": "bfloat16", "gradient_checkpointing": "selective"}),
        ("qwen2", {"kl_coeff": 0.3, "dtype": "bfloat16", "lora": LoraSettings(rank=4)}),
    ],
)
def test_one_learner_alone_reads_weights(
    processes: LearnerProcesses, tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    """What the others start with is, bit for bit, what they would have read; but their folders hold no weights."""
    folder = save_tiny_model(tmp_path / "model", kind)
    bare = shutil.copytree(folder, tmp_path / "bare" / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    expected = results_of(processes.run(2, begin, [folder, folder], settings, True))
    found = results_of(processes.run(2, begin, [folder, bare], settings, False))
    for (models, _), (wanted, _) in zip(found, expected, strict=True):
        for (values, kinds), (values_wanted, kinds_wanted) in zip(models, wanted, strict=True):
            assert kinds == kinds_wanted and values.keys() == values_wanted.keys()
            for name, tensor in values_wanted.items():
                assert tensor.dtype == values[name].dtype and torch.equal(tensor, values[name]), name
    (_, (_, most)), (_, (_, all_of_them)) = found, expected
    assert most < 0.6 * all_of_them


def begin_with_error(rank: int, world_size: int, folders: list[Path]) -> str:
    with pytest.raises(LearnerError) as caught:
        learner(folders[rank], rank, world_size, learner_parallelism="fsdp")
    return str(caught.value)


def test_weights_that_cannot_be_read_or_fit_no_other_model_are_an_error_on_all_learners(
    processes: LearnerProcesses, folders: dict[str, Path], tmp_path: Path
) -> None:
    broken = shutil.copytree(folders["llama"], tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    for pair, told in (
        ([broken, folders["llama"]], "loading the model failed on 1 of 2 learners; learner 0: "),
        ([folders["qwen2"], folders["llama"]], "making the model without weights failed on 1 of 2 learners; learner 1: "),
    ):
        first, second = results_of(processes.run(2, begin_with_error, pair))
        assert first == second and first.startswith(told)


def lose_weights(rank: int, world_size: int, folder: Path) -> str:
    """A job: the files are gone when the reference model is made, with the first update."""
    made = learner(folder, rank, world_size, learner_parallelism="fsdp", kl_coeff=0.3)
    dist.barrier()
    if rank == 0:
        (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(LearnerError) as caught:
        updated(made, batch(4, 1, {}), rank, world_size)
    return str(caught.value)


def test_a_reference_model_that_cannot_be_read_is_an_error_on_all_learners(
    processes: LearnerProcesses, folders: dict[str, Path], tmp_path: Path
) -> None:
    first, second = results_of(processes.run(2, lose_weights, shutil.copytree(folders["llama"], tmp_path / "lost")))
    assert first == second and first.startswith("loading the reference model failed on 1 of 2 learners; learner 0: ")


def masters(rank: int, world_size: int, folder: Path, settings: dict[str, Any]) -> tuple[list[torch.Tensor], Any]:
    """A job: float32 weights that the optimiser steps on, and the bfloat16 ones that engines get; states have the former."""
    made = learner(folder, rank, world_size, **settings)
    for size in BATCHES:
        updated(made, batch(*size, settings), rank, world_size)
    (optimizer,) = made._named_optimizers.values()
    held = [full_tensor(p.detach()) for p in optimizer.param_groups[0]["params"]]
    if made.policy.is_sharded:
        state = gathered_weights(made)
        assert all(
            torch.equal(state[name], p)
            for (name, _), p in zip(made.policy.language_model.named_parameters(), held, strict=True)
        )
    return held, {name: full_tensor(tensor) for name, tensor in made.policy.engine_tensors().items()}


def test_shards_of_bfloat16_weights_are_float32_masters(processes: LearnerProcesses, folders: dict[str, Path]) -> None:
    settings = {"dtype": "bfloat16", "lr": 1e-4, "learner_parallelism": "fsdp"}
    expected, sent = masters(0, 1, folders["llama"], settings)
    for held, theirs in results_of(processes.run(2, masters, folders["llama"], settings)):
        for found, wanted in zip(held, expected, strict=True):
            assert found.dtype == wanted.dtype == torch.float32
            torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)  # of steps that add up to 5e-4
        assert {name: (t.dtype, t.shape) for name, t in theirs.items()} == {n: (t.dtype, t.shape) for n, t in sent.items()}
        assert all(tensor.dtype == torch.bfloat16 for tensor in theirs.values())
        assert "lm_head.weight" not in theirs  # tied: the engine ties it itself


def adapted(rank: int, world_size: int, folder: Path, settings: dict[str, Any], target: str) -> Any:
    """A job: what an engine is sent, what it should score, and both exports of one update."""
    made = learner(folder, rank, world_size, **settings)
    updated(made, batch(4, 2, settings), rank, world_size)
    before = [full_tensor(p.detach()).clone() for p in made.policy.parameters()]
    scores = made.score(SEQUENCES)
    for merged in (True, False):
        made.weights.export(f"{target}/{merged}", merged)
    assert all(torch.equal(full_tensor(p.detach()), b) for p, b in zip(made.policy.parameters(), before, strict=True))
    return scores, {name: full_tensor(tensor) for name, tensor in made.policy.engine_tensors().items()}


def apart(left: list[list[float]], right: list[list[float]]) -> float:
    """Mean |Δ logprob|."""
    return float(np.mean([abs(a - b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]))


def test_adapters_beside_shards_of_bfloat16_weights(
    processes: LearnerProcesses, folders: dict[str, Path], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    settings = {"dtype": "bfloat16", "lora": LoraSettings(rank=4), "learner_parallelism": "fsdp"}
    expected, sent = adapted(0, 1, folders["llama"], settings, str(tmp_path / "one"))
    for scores, theirs in results_of(processes.run(2, adapted, folders["llama"], settings, str(tmp_path / "two"))):
        assert {name: (t.dtype, t.shape) for name, t in theirs.items()} == {n: (t.dtype, t.shape) for n, t in sent.items()}
        assert apart(scores, expected) < apart(expected, learner(folders["llama"], **settings).score(SEQUENCES)) / 4
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "True", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.float32)
    ids = torch.tensor([SEQUENCES[0]])
    with torch.no_grad():
        plain, wanted = base(ids).logits, merged(ids).logits
        found = PeftModel.from_pretrained(base, tmp_path / "two" / "False")(ids).logits
    assert (found - wanted).abs().mean() < (plain - wanted).abs().mean() / 4


def autocast(rank: int, world_size: int, folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    return updated(learner(folder, rank, world_size, **settings), batch(4, 2, settings), rank, world_size)


def test_autocast_computes_what_it_does_on_one_learner(processes: LearnerProcesses, folders: dict[str, Path]) -> None:
    settings = {"dtype": "float32", "autocast_dtype": "bfloat16", "learner_parallelism": "fsdp", "lr": 0.0}
    expected = autocast(0, 1, folders["llama"], settings)
    for metrics in results_of(processes.run(2, autocast, folders["llama"], settings)):
        assert metrics == pytest.approx(expected, rel=1e-5)


def double(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def fall_over(gradient: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("no kernel")


def probed(rank: int, world_size: int, folder: Path, fault: Any, on: tuple[int, ...]) -> tuple[str, dict[str, float]]:
    """A job: the attention that is found where the backward pass of one has a fault ``on`` learners, and an update with it."""
    right = tree_attention

    def spoiled(*arguments: Any, **options: Any) -> Any:
        output, weights = right(*arguments, **options)
        if output.requires_grad and fault is not None and rank in on:
            output.register_hook(fault)
        return output, weights

    with patch.object(forward, "tree_attention", spoiled):
        made = learner(folder, rank, world_size, learner_parallelism="fsdp")
    return str(made.policy.attention), updated(made, batch(4, 2, {}), rank, world_size)


@pytest.mark.parametrize(("fault", "found"), [(None, "blocks"), (double, "mask"), (fall_over, "mask")])
@pytest.mark.parametrize("on", [(0, 1), (1,)], ids=["on all learners", "on one"])
def test_the_backward_pass_of_an_attention_is_tried_on_shards(
    processes: LearnerProcesses, folders: dict[str, Path], fault: Any, found: str, on: tuple[int, ...]
) -> None:
    """A learner that alone chose another attention, or alone raised, would leave the others waiting."""
    expected = updated(learner(folders["llama"]), batch(4, 2, {}))
    for attention, metrics in results_of(processes.run(2, probed, folders["llama"], fault, on)):
        assert attention == found and metrics == pytest.approx(expected, rel=1e-9, abs=1e-12)


def failing_once(right: Callable[..., Any], rank: int, call: int) -> Callable[..., Any]:
    """The same function, whose call of this number raises, on the second learner."""
    calls = iter(range(1, 1000))

    def called(*arguments: Any) -> Any:
        if next(calls) == call and rank == 1:
            raise OSError("no memory")
        return right(*arguments)

    return called


def probe_fails(rank: int, world_size: int, folder: Path) -> str:
    """A job: one learner raises where the others go on to gather a layer, before any attention has been tried."""
    faulty = failing_once(probe.hidden_states, rank, 1)
    with patch.object(probe, "hidden_states", faulty), pytest.raises(LearnerError) as caught:
        learner(folder, rank, world_size, learner_parallelism="fsdp")
    return str(caught.value)


def score_fails(rank: int, world_size: int, folder: Path, settings: dict[str, Any]) -> tuple[str, bool]:
    """A job: one learner raises between two sequences; then whether scores are what they were before."""
    made = learner(folder, rank, world_size, dtype="float32", learner_parallelism="fsdp", **settings)
    before, faulty = made.score(SEQUENCES), failing_once(rl_module._sequence_logprobs, rank, 2)
    with patch.object(rl_module, "_sequence_logprobs", faulty), pytest.raises(LearnerError) as caught:
        made.score(SEQUENCES)
    return str(caught.value), made.score(SEQUENCES) == before


def test_a_learner_that_raises_in_the_first_pass_of_the_probe_leaves_none_waiting(
    processes: LearnerProcesses, folders: dict[str, Path]
) -> None:
    for message in results_of(processes.run(2, probe_fails, folders["llama"])):
        assert message == "a trial pass failed on 1 of 2 learners; learner 1: OSError: no memory"


@pytest.mark.parametrize("settings", [{}, {"lora": LoraSettings(rank=4)}], ids=["full", "lora"])
def test_a_learner_that_raises_in_scoring_as_an_engine_leaves_none_waiting(
    processes: LearnerProcesses, folders: dict[str, Path], settings: dict[str, Any]
) -> None:
    for message, same in results_of(processes.run(2, score_fails, folders["qwen2"], settings)):
        assert message == "scoring as an engine failed on 1 of 2 learners; learner 1: OSError: no memory" and same


def score(rank: int, world_size: int, folder: Path, settings: dict[str, Any]) -> tuple[list[list[float]], int]:
    """A job: what an engine should score, and how many numbers were held in copies at once, at most."""
    made = learner(folder, rank, world_size, dtype="float32", learner_parallelism="fsdp", **settings)
    updated(made, batch(4, 2, settings), rank, world_size)
    held, most, clone = 0, 0, torch.Tensor.clone

    def count(change: int) -> None:
        nonlocal held, most
        held += change
        most = max(most, held)

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        made_copy = clone(tensor)
        count(tensor.numel())
        weakref.finalize(made_copy, count, -tensor.numel())
        return made_copy

    with patch.object(torch.Tensor, "clone", counted):
        scores = made.score(SEQUENCES)
    return scores, most


@pytest.mark.parametrize("settings", [{}, {"lora": LoraSettings(rank=4)}], ids=["full", "lora"])
def test_no_more_than_one_layer_is_copied_to_score_as_an_engine(
    processes: LearnerProcesses, folders: dict[str, Path], settings: dict[str, Any]
) -> None:
    model = learner(folders["qwen2"]).policy.language_model
    layer, whole = (sum(p.numel() for p in module.parameters()) for module in (model.model.layers[0], model))
    outside = whole - layer * len(model.model.layers)
    expected, most = score(0, 1, folders["qwen2"], settings)
    assert most == outside + layer < whole
    for scores, held in results_of(processes.run(2, score, folders["qwen2"], settings)):
        assert held == most
        np.testing.assert_allclose(np.concatenate(scores), np.concatenate(expected), atol=0.01)


def give_away(rank: int, world_size: int, folder: Path, target: Path) -> dict[str, Any]:
    """A job: an update, then everything that reads or writes whole weights, on all learners."""
    settings: dict[str, Any] = {"dtype": "float32", "learner_parallelism": "fsdp"}
    made = learner(folder, rank, world_size, **settings)
    updated(made, batch(4, 2, settings), rank, world_size)
    scores = made.score(SEQUENCES)
    with patch("ray.put", lambda value: value):  # there is no Ray in these processes
        publication = made.weights.publish()
    made.weights.export(str(target))
    state = made.policy.get_state(on_all_learners=True, keep=rank == 0)
    assert bool(state) == (publication is not None) == (rank == 0)
    restored = learner(folder, rank, world_size, **settings)
    restored.policy.set_state(made.policy.get_state(on_all_learners=True))
    for theirs, own in zip(restored.policy.parameters(), made.policy.parameters(), strict=True):
        assert isinstance(theirs, DTensor) and torch.equal(theirs.to_local(), own.to_local())
    with pytest.raises(RuntimeError, match=r"one of them was asked for all: use RAPO.get_module"):
        made.policy.get_state()
    assert made.score(SEQUENCES) == scores  # rounding for it left no trace
    restored._set_optimizer_state(made._get_optimizer_state())
    for each in (made, restored):
        updated(each, batch(3, 1, settings), rank, world_size)
    for theirs, own in zip(restored.policy.parameters(), made.policy.parameters(), strict=True):
        assert torch.equal(theirs.to_local(), own.to_local())  # type: ignore[attr-defined]
    published = unpack_weights(publication.packed) if publication else {}
    return {"scores": scores, "published": published, "state": unpack_weights(state)}


def test_whole_weights_are_gathered_from_shards(processes: LearnerProcesses, folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for kind, folder in folders.items():
        one = learner(folder, dtype="float32")
        updated(one, batch(4, 2, {}))
        expected = unpack_weights(one.policy.get_state())
        first, second = results_of(processes.run(2, give_away, folder, tmp_path / kind))
        assert first["scores"] == second["scores"]
        np.testing.assert_allclose(np.concatenate(first["scores"]), np.concatenate(one.score(SEQUENCES)), atol=0.02)
        assert first["published"].keys() == one.policy.engine_tensors().keys() and not second["published"]
        assert first["state"].keys() == expected.keys() and not second["state"]
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / kind)
        assert exported.config.architectures == [type(exported).__name__]
        for name, tensor in first["state"].items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)
            assert torch.equal(exported.state_dict()[name], tensor)
            if name in first["published"]:
                assert torch.equal(first["published"][name], tensor.bfloat16())


def poisoned(data: TrainingBatch) -> TrainingBatch:
    """The same batch, with one advantage that is NaN."""
    group = data.minibatches[0][0]
    broken = np.full_like(group.samples[0].advantages, np.nan)
    group = replace(group, samples=(replace(group.samples[0], advantages=broken), *group.samples[1:]))
    return replace(data, minibatches=((group, *data.minibatches[0][1:]), *data.minibatches[1:]))


def skip(rank: int, world_size: int, folder: Path) -> str:
    """A job: an update that is not finite on one learner, until all learners refuse to go on."""
    made = learner(folder, rank, world_size, learner_parallelism="fsdp", num_epochs=1)
    before = gathered_weights(made)
    assert updated(made, poisoned(batch(3, 1, {})), rank, world_size)["num_steps"] == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in gathered_weights(made).items())
    made._skipped_in_a_row = 4
    with pytest.raises(LearnerError) as caught:
        updated(made, poisoned(batch(3, 1, {})), rank, world_size)
    return str(caught.value)


def test_a_step_that_is_not_finite_on_one_learner_is_skipped_on_all(
    processes: LearnerProcesses, folders: dict[str, Path]
) -> None:
    first, second = results_of(processes.run(2, skip, folders["llama"]))
    assert first == second and "5 optimiser steps in a row were not finite" in first


def fail(rank: int, world_size: int, folder: Path, settings: dict[str, Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """A job: an update in which the second learner raises, then one that works."""
    made = learner(folder, rank, world_size, **settings)
    with pytest.raises(LearnerError) as caught:
        updated(made, batch(4, 2 if made.fault == "scoring" else 1, settings), rank, world_size)
    updated(made, batch(4, 1, settings), rank, world_size)
    return str(caught.value), gathered_weights(made)


FAULTS = [("ddp", "loss"), slow("fsdp", "loss"), slow("fsdp", "layer forward"), ("fsdp", "layer backward"), ("fsdp", "scoring")]


@pytest.mark.parametrize(("parallelism", "fault"), FAULTS)
def test_one_learner_raising_is_one_error_on_all_and_the_group_lives_on(
    processes: LearnerProcesses, folders: dict[str, Path], parallelism: str, fault: str
) -> None:
    settings = {"learner_parallelism": parallelism, "test": {"fault": fault}, "num_epochs": 1, "kl_coeff": 0.1}
    settings |= {"max_tokens_per_micro_batch": 20}  # so that there are rows before and after the fault
    one = learner(folders["llama"], **{**settings, "test": {}})
    updated(one, batch(4, 1, settings))
    expected = gathered_weights(one)
    stage = "scoring the old policy" if fault == "scoring" else "forward and backward"
    for message, weights in results_of(processes.run(2, fail, folders["llama"], settings)):
        assert message == f"{stage} failed on 1 of 2 learners; learner 1: OSError: a disk is gone"
        for name, tensor in expected.items():  # the failed update left nothing behind
            torch.testing.assert_close(weights[name], tensor, rtol=1e-8, atol=1e-10)


def save(rank: int, world_size: int, folder: Path, target: Path, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A job: an update, a checkpoint, and an update that whoever restores it has to repeat."""
    made = learner(folder, rank, world_size, **settings)
    updated(made, batch(3, 1, settings), rank, world_size)
    made.save_training_state(str(target))
    updated(made, batch(4, 2, settings), rank, world_size)
    return gathered_weights(made)


def restore(rank: int, world_size: int, folder: Path, target: Path, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A job: the last update of :func:`save`, from its checkpoint."""
    made = learner(folder, rank, world_size, **settings)
    updated(made, batch(2, 1, settings), rank, world_size)
    made.load_training_state(str(target), num_env_steps=0)
    updated(made, batch(4, 2, settings), rank, world_size)
    return gathered_weights(made)


def misread(rank: int, world_size: int, folder: Path, target: Path) -> str:
    """A job: the second learner has no checkpoint to read, and then it has."""
    made = learner(folder, rank, world_size, learner_parallelism="fsdp")
    made.save_training_state(str(target))
    with pytest.raises(LearnerError) as caught:
        made.load_training_state(str(target if rank == 0 else target / "nowhere"), 0)
    made.load_training_state(str(target), 0)
    return str(caught.value)


def test_a_checkpoint_that_one_learner_lacks_is_one_error_on_all(
    processes: LearnerProcesses, folders: dict[str, Path], tmp_path: Path
) -> None:
    first, second = results_of(processes.run(2, misread, folders["llama"], tmp_path / "state"))
    assert first == second
    assert first.startswith("a look at the checkpoint failed on 1 of 2 learners; learner 1: CheckpointError: ")


@pytest.mark.parametrize(("before", "after"), [slow(2, 2), (2, 4), (2, 1), (1, 2)])
def test_a_checkpoint_goes_on_with_any_number_of_learners(
    processes: LearnerProcesses, folders: dict[str, Path], tmp_path: Path, before: int, after: int
) -> None:
    arguments = (folders["llama"], tmp_path, {"learner_parallelism": "fsdp"})
    expected = results_of(processes.run(before, save, *arguments))[0]
    for weights in results_of(processes.run(after, restore, *arguments)):
        for name, tensor in expected.items():
            torch.testing.assert_close(weights[name], tensor, rtol=1e-8, atol=1e-10)


def test_one_learner_alone_has_nothing_to_shard(folders: dict[str, Path]) -> None:
    made = learner(folders["llama"], learner_parallelism="fsdp")
    assert not made.policy.is_sharded and updated(made, batch(2, 1, {}))["num_steps"] == 2
