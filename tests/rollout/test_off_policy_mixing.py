"""Trajectories of others in the groups of real rollout loops: who joins, with which tokens, and what the learner is given."""

from __future__ import annotations

import pickle
import random
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted import ByteTokenizer, ScriptedEngine, scripted_loop

from rapo_rllib.batching.off_policy import ExpertSource, OffPolicyMixing
from rapo_rllib.batching.packing import pack_rows
from rapo_rllib.batching.replay import ReplayStore
from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.settings import ObjectiveSettings, ProtocolSettings
from rapo_rllib.types import ExpertTrajectory, Question, TokenKind, Trajectory, TrajectoryGroup

PROTOCOL = ProtocolSettings(system_prompt="")
CHAT = ChatProtocol(ByteTokenizer(), PROTOCOL)
QUESTION = Question("q", "What is 3 + 5?", "8")
STEPS = ("<python>3 + 5</python>\n<result>\n8\n</result>\n", "<answer>8</answer>")
EXPERT = ExpertTrajectory(QUESTION, STEPS, 1.0, "solver")
LUFFY = ObjectiveSettings(loss_aggregation="constant", normalize_std=False, max_response_tokens=100)


def right(so_far: str) -> str:
    return "<answer>8</answer>" if "<result>" in so_far else "<python>3 + 5</python>"


def wrong(so_far: str) -> str:
    return "<answer>9</answer>"


def rolled_out(script: Any, version: int = 0) -> list[TrajectoryGroup]:
    engine = ScriptedEngine(script)
    engine.policy_version = version
    with closing(scripted_loop(engine, group_size=3)) as loop:
        return loop.run([QUESTION])


def expert_mixing(*experts: ExpertTrajectory, count: int = 1, limit: int = 400) -> OffPolicyMixing:
    return OffPolicyMixing(ExpertSource(experts or (EXPERT,), CHAT, limit), count)


def test_an_expert_has_the_tokens_of_a_rollout_that_did_the_same() -> None:
    (group,) = expert_mixing().mixed(rolled_out(right))
    rollout, (expert,) = group.trajectories[0], group.off_policy
    assert (expert.token_ids, expert.prompt_ids) == (rollout.token_ids, rollout.prompt_ids)
    as_expert = {TokenKind.POLICY: TokenKind.EXPERT, TokenKind.OBSERVATION: TokenKind.OBSERVATION}
    assert expert.kinds == [as_expert[TokenKind(kind)] for kind in rollout.kinds]
    assert [(s.start, s.stop) for s in expert.steps] == [(s.start, s.stop) for s in rollout.steps]
    assert (len(group.trajectories), len(group.members)) == (3, 4)
    assert group.rewards == [1.0] * 3 and [t.reward for t in group.members] == [1.0] * 4


def test_a_group_that_failed_learns_from_the_expert() -> None:
    """Rewards 0, 0, 0 and 1: mean 1/4; without deviation the advantages are -1/4 and 3/4."""
    groups = rolled_out(wrong)
    assert sample_groups(groups, LUFFY)[0] == []
    mixed = expert_mixing().mixed(groups)
    (samples,), statistics = sample_groups(mixed, LUFFY)
    assert [float(s.advantages[0]) for s in samples.samples] == pytest.approx([-0.25] * 3 + [0.75])
    assert [s.off_policy for s in samples.samples] == [False] * 3 + [True]
    assert {s.weight for s in samples.samples} == {1 / (100 * 4 * 1)}
    assert statistics["num_off_policy_trajectories"] == 1
    (row,) = pack_rows([samples], 1000)
    written = "".join(("<python>3 + 5</python>", "<answer>8</answer>")).encode()
    assert bytes(row.target_ids[row.off_policy].tolist()) == written
    assert set(row.rollout_logprobs[row.off_policy].tolist()) == {0.0}
    assert int(row.off_policy.sum()) == len(written) and row.num_loss_tokens == len(written) + 3 * len("<answer>9</answer>")


def test_questions_are_told_apart_by_their_text() -> None:
    other = replace(EXPERT, question=Question("q", "What is 4 + 4?", "8"))  # numbered alike, of another data set
    renamed = replace(EXPERT, question=Question("row-17", " What is 3 + 5?\n", "8"))
    groups = rolled_out(wrong)
    assert expert_mixing(other).mixed(groups)[0].off_policy == []
    assert len(expert_mixing(other, renamed).mixed(groups)[0].off_policy) == 1
    by_seed = [Question("seed-1", ""), Question("seed-2", "")]
    source = ExpertSource([replace(EXPERT, question=q) for q in by_seed], CHAT, 400)
    drawn = source.draw(TrajectoryGroup(by_seed[1], []), [1], 5, random.Random(0))
    assert [t.question_id for t in drawn] == ["seed-2"]


def test_who_joins_depends_on_seed_version_and_question_alone() -> None:
    experts = [replace(EXPERT, steps=(f"<answer>{n}</answer>",)) for n in range(20)]

    def joined(version: int, seed: int = 0, count: int = 3) -> list[str]:
        mixing = OffPolicyMixing(ExpertSource(experts, CHAT, 400), count, seed)
        return [t.text for t in mixing.mixed(rolled_out(wrong, version))[0].off_policy]

    assert joined(1) == joined(1) and len(set(joined(1))) == 3
    assert joined(1) != joined(2) and joined(1) != joined(1, seed=1)
    assert len(joined(1, count=50)) == 20


def test_what_is_too_long_or_not_rewarded_or_has_no_group_stays_out() -> None:
    length = len("".join(STEPS).encode())
    for limit, joined in ((length, 1), (length - 1, 0)):
        mixing = expert_mixing(limit=limit)
        groups = mixing.mixed(rolled_out(wrong))
        assert len(groups[0].off_policy) == joined
        assert mixing.metrics(groups)["off_policy/too_long"] == 1 - joined
        assert mixing.metrics(groups)["off_policy/groups_without"] == 1 - joined
    assert len(ExpertSource([replace(EXPERT, reward=0.0)], CHAT, 400)) == 0
    failed = rolled_out(wrong)
    for trajectory in failed[0].trajectories:
        trajectory.end = "error"
    assert expert_mixing().mixed(failed)[0].off_policy == []


def test_earlier_successes_are_replayed_as_they_were_sampled() -> None:
    store = ReplayStore(per_question=4, capacity=100)
    mixing = OffPolicyMixing(store, count=1)
    first = mixing.mixed(rolled_out(right, version=3))
    assert first[0].off_policy == []  # nothing is known yet, and what is trained on now is not replayed now
    store.remember(first)
    (group,) = mixing.mixed(rolled_out(wrong, version=5))
    (replayed,) = group.off_policy
    source = first[0].trajectories[0]
    for name in ("token_ids", "kinds", "prompt_ids", "reward", "question_id"):
        assert getattr(replayed, name) == getattr(source, name), name
    assert replayed.logprobs == pytest.approx(source.logprobs)
    assert (replayed.origin, replayed.policy_version, replayed.correct) == ("replay", 3, True)
    metrics = mixing.metrics([group])
    assert metrics["off_policy/age"] == 2 and metrics["off_policy/stored"] == 3
    (samples,), _ = sample_groups([group], ObjectiveSettings())
    (row,) = pack_rows([samples], 1000)
    assert set(row.rollout_logprobs[row.off_policy].tolist()) == {-0.5}  # what the engine reported


def success(name: str, marker: int, prompt: tuple[int, ...] = (1,), **changes: Any) -> TrajectoryGroup:
    trajectory = Trajectory(name, prompt, reward=1.0, correct=True, end="answer", policy_version=marker)
    trajectory.append_policy([marker], [-1.0], [0.5])
    return TrajectoryGroup(Question(name, name), [replace(trajectory, **changes)])


def versions(store: ReplayStore, name: str, prompt: tuple[int, ...] = (1,)) -> list[int]:
    group = TrajectoryGroup(Question(name, name), [])
    return sorted(t.policy_version for t in store.draw(group, prompt, 100, random.Random(0)))


def test_the_store_keeps_the_newest_and_is_bounded() -> None:
    store = ReplayStore(per_question=2, capacity=3)
    for marker in (1, 2, 3):
        store.remember([success("a", marker)])
    assert versions(store, "a") == [2, 3]
    store.remember([success("b", 4)])
    assert (versions(store, "a"), versions(store, "b"), len(store)) == ([2, 3], [4], 3)
    store.remember([success("a", 5)])  # "b" is the one that was remembered longest ago now
    store.remember([success("c", 6)])
    assert (versions(store, "a"), versions(store, "b"), versions(store, "c")) == ([3, 5], [], [6])


def test_only_successes_are_kept_and_another_prompt_is_another_question() -> None:
    store = ReplayStore(2, 3)
    for changes in ({"correct": False}, {"end": "length"}, {"end": "error"}):
        store.remember([success("a", 1, **changes)])
    assert len(store) == 0
    store.remember([success("a", 1, prompt=(1, 2))])
    assert (versions(store, "a", prompt=(1,)), versions(store, "a", prompt=(1, 2))) == ([], [1])


def test_the_store_survives_a_checkpoint() -> None:
    store, restored = ReplayStore(2, 10), ReplayStore(2, 10)
    store.remember([success("a", 1), success("b", 2)])
    state = pickle.dumps(store.get_state())
    store.remember([success("a", 3)])
    restored.set_state(pickle.loads(state))
    assert (versions(restored, "a"), versions(restored, "b")) == ([1], [2])
    restored.set_state(None)
    assert len(restored) == 0


def test_a_stored_token_takes_nine_bytes() -> None:
    long = success("a", 1)
    long.trajectories[0].append_policy([5] * 10_000, [-1.0] * 10_000, [0.5] * 10_000)
    store = ReplayStore(2, 10)
    store.remember([long])
    (stored,) = store.get_state()["a"]
    arrays = [value for value in vars(stored).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) == 9 * 10_001 + 4
