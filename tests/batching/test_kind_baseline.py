"""``advantage_baseline: kind``: trajectories that retrieved and the others each among themselves, for every credit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_learner import trajectory

from rapo_rllib import RAPOConfig
from rapo_rllib.algorithm.sampling import MAX_SAMPLING_ROUNDS, sample_batch
from rapo_rllib.batching.credit import group_has_signal, members_without_signal, token_advantages
from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.settings import ObjectiveSettings, UpdateSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

KIND = ObjectiveSettings(normalize_std=False, retrieval_advantage_weight=0.0, advantage_baseline="kind")
CREDITS = ["trajectory", "gigpo"]


def member(reward: float, helped: bool, seed: int) -> Trajectory:
    parts = [("policy", 2), ("retrieved" if helped else "observation", 2), ("policy", 2)]
    made = trajectory("q", [1, 2], parts, reward, seed)
    made.steps[-1].reward = reward
    return made


def group_of(helped: list[float], alone: list[float]) -> TrajectoryGroup:
    members = [member(reward, True, seed) for seed, reward in enumerate(helped)]
    members += [member(reward, False, len(helped) + seed) for seed, reward in enumerate(alone)]
    assert [bool(t.retrievals) for t in members] == [True] * len(helped) + [False] * len(alone)
    return TrajectoryGroup(Question("q", ""), members)


@pytest.mark.parametrize("credit", CREDITS)
def test_a_kind_is_normalised_as_a_group_of_its_own(credit: Any) -> None:
    settings = replace(KIND, credit=credit)
    helped, alone, both = group_of([1.0, 1.0, 0.0], []), group_of([], [1.0, 0.0]), group_of([1.0, 1.0, 0.0], [1.0, 0.0])
    apart = [own for group in (helped, alone) for own in token_advantages(group, replace(settings, advantage_baseline="group"))]
    assert [own.tolist() for own in token_advantages(both, settings)] == [own.tolist() for own in apart]
    assert apart[2][0] < -0.6 and apart[3][0] > 0.4 and members_without_signal(both, settings) == 0


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize(
    ("helped", "alone", "without"),
    [
        ([1.0, 1.0], [0.0, 0.0], 4),  # what is learned from with one baseline
        ([1.0], [0.0, 0.0], 3),  # one alone has nothing to be compared with
        ([1.0, 1.0], [0.0, 1.0], 2),
        ([1.0], [0.0, 1.0], 1),
    ],
)
def test_dynamic_sampling_metric_and_learner_agree_on_who_has_a_signal(
    credit: Any, helped: list[float], alone: list[float], without: int
) -> None:
    settings, group = replace(KIND, credit=credit), group_of(helped, alone)
    signal = without < len(group.members)
    assert members_without_signal(group, settings) == without and group_has_signal(group, settings) == signal
    metrics = rollout_metrics(SampleResult([group]), settings)
    assert (metrics["members_without_signal"], metrics["groups_without_signal"]) == (without, not signal)
    trained, statistics = sample_groups([group], settings)
    assert (len(trained), statistics["num_groups_without_signal"]) == (signal, not signal)
    assert sum(not own.any() for own in token_advantages(group, settings)) == without
    update = UpdateSettings(questions_per_step=1, dynamic_sampling=True)
    cursor, dropped = QuestionCursor(SeedQuestions(1), seed=0), MAX_SAMPLING_ROUNDS * (not signal)
    assert sample_batch(lambda batch: SampleResult([group]), cursor, update, settings).groups_dropped == dropped
    assert group_has_signal(group, replace(settings, advantage_baseline="group"))


@pytest.mark.parametrize("credit", CREDITS)
def test_length_is_punished_only_in_a_kind_whose_outcomes_differ(credit: Any) -> None:
    group = group_of([1.0, 0.0], [1.0, 1.0])
    group.members[2].unfitting_tokens = 4
    free = replace(KIND, credit=credit, max_response_tokens=8)
    (helped, *_, long, short), before = (
        token_advantages(group, replace(free, overlong_buffer_share=share)) for share in (1.0, 0.0)
    )
    assert helped.tolist() == before[0].tolist()  # both of its kind are of one length
    assert not long.any() and not short.any()


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="advantage_baseline = 'kind' with group_size = 1"):
        RAPOConfig().training(group_size=1, num_hybrid=0, advantage_baseline="kind").validate()
