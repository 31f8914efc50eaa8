"""``benchmarks/learner.py --trees --roofline``: the pure parts by hand; both ways of packing give the same gradients."""

from __future__ import annotations

import pytest
import torch
from gpu_parts.machine import SHAPES
from learner import ALONE
from learner_parts import roofline, trees
from learner_parts.clock import PartClock
from learner_parts.side import Options
from learner_parts.step import Trained, tree_group
from learner_parts.tree_shapes import TreeShape

from rapo_rllib.models.activation_checkpointing import decoder_layers

OPTIONS = Options("", "float32", threads=1, gradient_checkpointing="selective", trl_batch=2)


@pytest.mark.parametrize(
    ("name", "shared", "plain"),
    [  # the last token of a trajectory predicts nothing
        ("arpo_tree", 200 + 2 * 150 + 4 * 150 + 8 * 149, 8 * (200 + 449)),
        ("tau2_prefix", 4096 + 16 * 299, 16 * (4096 + 299)),
        ("long_prompt", 300 + 16 * 149, 16 * (300 + 149)),
    ],
)
def test_tokens_of_a_shape(name: str, shared: int, plain: int) -> None:
    group = tree_group(ALONE[name], 320)
    assert [sum(row.num_tokens for row in trees.rows_of(group, way)) for way in trees.WAYS] == [shared, plain]
    assert all(row.num_tokens <= trees.MAX_TOKENS for way in trees.WAYS for row in trees.rows_of(group, way))


def test_lengths_shrink_and_branches_stay() -> None:
    assert TreeShape(200, ((2, 150), (3, 100))).shrunk(10) == TreeShape(20, ((2, 15), (3, 10)))


def test_ratios_are_of_neighbouring_passes() -> None:
    assert trees.ratios([1.0, 2.0, 2.0], [3.0, 8.0, 4.0]) == {"median": 3.0, "least": 2.0, "greatest": 4.0}


def test_the_greatest_difference_is_relative_to_a_weight() -> None:
    found, expected = [torch.tensor([3.0, 5.0]), torch.zeros(2)], [torch.tensor([3.0, 4.0]), torch.zeros(2)]
    assert trees.greatest_difference(found, expected) == pytest.approx(1 / 5)


def test_a_clock_counts_parts_without_those_inside() -> None:
    clock = PartClock(iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0]).__next__)
    with clock.part("mlp"), pytest.raises(RuntimeError), clock.part("attention"):  # at 1 and 3; they end at 15 and 10
        clock._enter("head")  # at 6; what broke off and left it open closes it
        raise RuntimeError
    assert clock.taken() == {"other": 1.0 + 6.0, "mlp": 2.0 + 5.0, "attention": 3.0, "head": 4.0}


def test_the_backward_pass_counts_too() -> None:
    """Each tick is a second: enter and leave forward, then, from the end, enter and leave backward."""
    clock = PartClock(iter(map(float, range(9))).__next__)
    weight = torch.ones(1, requires_grad=True)
    out = clock.of("mlp", lambda x: x * 3)(weight * 2) + 1
    assert clock.taken() == {"other": 2.0, "mlp": 1.0}
    out.backward()
    assert clock.taken() == {"other": 2.0, "mlp": 1.0} and weight.grad.item() == 6.0


def test_the_roofline_by_hand() -> None:
    least = roofline.least_seconds({"attention": 10.0, "mlp": 30.0}, 8.0, 10.0, 4.0)
    assert least == {"attention": 1.0, "mlp": 3.0, "optimizer": 2.0}
    found = roofline.figures([{"mlp": 6.0, "other": 4.0}, {"mlp": 9.0, "other": 4.0}, {"mlp": 5.0, "other": 1.0}], {"mlp": 3.0})
    assert found["share"] == {"attention": 0.0, "mlp": 0.6, "head": 0.0, "optimizer": 0.0, "other": 0.4}
    assert found["of_roofline"] == {"mlp": 0.5} and found["step_of_roofline"] == 0.3


def test_both_ways_give_the_same_gradients_and_every_part_takes_time() -> None:
    trained = Trained.load(OPTIONS, tiny=True)
    assert trained.shape == SHAPES["tiny"]
    shapes = {"tree": TreeShape(20, ((2, 12), (3, 9)))}
    part = trees.measured(trained, shapes, 2)["tree"]
    assert part["gradient_difference"] < 1e-4 and len(part["seconds"]["plain"]) == 2
    assert part["flops_ratio"] > 1.5 and part["tokens_ratio"] == 6 * 40 / (20 + 24 + 6 * 8)
    step = roofline.measured(trained, shapes, 1, "float32")["steps"]["tree"]
    assert all(step["seconds"][name] > 0 for name in roofline.PARTS)
    assert sum(step["share"].values()) == pytest.approx(1.0)
    assert "forward" not in vars(trained.model.get_decoder().layers[0].mlp)


@pytest.mark.parametrize("gradient_checkpointing", [False, True, "selective"])
def test_norms_count_as_other_also_where_they_are_computed_again(
    monkeypatch: pytest.MonkeyPatch, gradient_checkpointing: bool | str
) -> None:
    """The backward pass of an MLP asks for its layer to be computed again. Here norms alone take time, a second each."""
    trained = Trained.load(Options("", "float32", 1, gradient_checkpointing, 2), tiny=True)
    seconds = [0.0]
    monkeypatch.setattr(roofline, "_now", lambda device: seconds[0])
    steps, group = roofline._Steps(trained), tree_group(TreeShape(20, ((2, 12),)), trained.shape.vocabulary)
    layers = decoder_layers(trained.model)
    for layer in layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.register_forward_pre_hook(lambda *_: seconds.append(seconds.pop() + 1.0))
    passes = 2 if gradient_checkpointing else 1
    assert steps.parts(group) == {**dict.fromkeys(roofline.PARTS, 0.0), "other": 2.0 * len(layers) * passes}
    assert not any("forward" in vars(layer) for layer in layers)
