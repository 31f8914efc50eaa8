"""Single steps: which they are, and what they count as."""

from __future__ import annotations

import pickle
from dataclasses import replace

from scripted import END, ByteTokenizer

from rapo_rllib.batching.off_policy import ExpertSource, OffPolicyMixing
from rapo_rllib.batching.replay import ReplayStore
from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.envs.expert_starts import ExpertRows
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.settings import ObjectiveSettings, ProtocolSettings
from rapo_rllib.types import ExpertTrajectory, Question, TokenKind, Trajectory, TrajectoryGroup

STEPS = ("<python>1</python>", "<python>2</python>", "<answer>2</answer>")
SOLVED = ExpertTrajectory(Question("q", "How much?", "2"), STEPS, 1.0, "x")
FAILED = ExpertTrajectory(Question("f", "How many?", "2"), ("<answer>0</answer>",), 0.0, "x")


def test_every_step_of_a_success_is_a_row_behind_those_before_it() -> None:
    rows = ExpertRows([FAILED, SOLVED], 0.5)
    assert len(rows) == 3
    found = {rows.row(place) for place in range(60)}
    assert {(one.id, one.start, one.expected) for one in found} == {("q", STEPS[:index], STEPS[index]) for index in range(3)}
    assert all(one.text == "How much?" and one.answer == "2" and not one.is_whole for one in found)


def test_draws_depend_on_seed_and_place_alone() -> None:
    drawn = [[ExpertRows([SOLVED], 0.5, seed).row(place) for place in range(30)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_share_follows_its_schedule() -> None:
    rows = ExpertRows([SOLVED], [[0, 1.0], [200, 0.0]])
    assert rows.share == 1.0
    rows.reached(50)
    assert rows.share == 0.75
    rows.reached(500)
    assert rows.share == 0.0


def test_metrics_are_of_single_steps_alone() -> None:
    row = ExpertRows([SOLVED], 1.0).row(0)

    def group(of: Question, *right: bool) -> TrajectoryGroup:
        return TrajectoryGroup(of, [Trajectory(of.id, (), correct=one, end="step") for one in right])

    groups = [group(row, True, False), group(row, True, True), group(SOLVED.question, False, False)]
    assert ExpertRows([SOLVED], 1.0).learn(groups) == {
        "single_steps/groups": 2.0,
        "single_steps/accuracy": 0.75,
        "single_steps/groups_without_signal": 1.0,
        "single_steps/refused": 0.0,
    }


def test_a_row_that_cannot_be_given_is_asked_once() -> None:
    rows, whole = ExpertRows([SOLVED], 1.0), ExpertRows([SOLVED], 1.0)
    refused = Trajectory("q", (), end="error", error="no room", start_refused=True)
    for question in {rows.row(place) for place in range(60)}:
        if len(question.start) == 1:
            values = rows.learn([TrajectoryGroup(question, [refused])])
    assert values["single_steps/refused"] == 1.0
    resumed = ExpertRows([SOLVED], 1.0)
    resumed.set_state(pickle.loads(pickle.dumps(rows.get_state())))
    drawn = [[made.row(place) for place in range(60)] for made in (rows, resumed, whole)]
    assert drawn[0] == drawn[1] and {len(one.start) for one in drawn[0]} == {0, 2}
    assert all(one == other for one, other in zip(drawn[0], drawn[2], strict=True) if len(other.start) != 1)
    resumed.set_state(None)
    assert [resumed.row(place) for place in range(60)] == drawn[2]


def test_where_no_row_can_be_given_one_is_asked_again() -> None:
    rows = ExpertRows([SOLVED], 1.0)
    refused = Trajectory("q", (), end="error", error="no room", start_refused=True)
    rows.learn([TrajectoryGroup(rows.row(place), [refused]) for place in range(60)])
    assert rows.row(0).id == "q"


def test_beside_single_steps_stands_the_step_of_the_expert() -> None:
    chat = ChatProtocol(ByteTokenizer(END), ProtocolSettings(system_prompt=""))
    rows = ExpertRows([ExpertTrajectory(SOLVED.question, (f"{STEPS[0]}\n<result>\n1\n</result>\n", STEPS[2]), 1.0, "x")], 1.0)
    for row in {rows.row(place) for place in range(20)}:
        tried = [Trajectory(row.id, chat.encode("How much?"), end="step") for _ in range(2)]
        for one in tried:
            one.append_given(chat.encode("".join(row.start)))
            one.append_policy(*([value] * 3 for value in (7, -1.0, 0.5)))
        mixing = OffPolicyMixing(ExpertSource([SOLVED], chat, 500), 1)
        (group,) = mixing.mixed([TrajectoryGroup(row, tried)])
        (expert,) = group.off_policy
        given = len(tried[0].token_ids) - 3
        assert expert.token_ids[:given] == tried[0].token_ids[:given] and set(expert.kinds[:given]) <= {TokenKind.GIVEN}
        written = row.expected.partition("\n")[0]
        ends = [END] if written.startswith("<answer>") else []  # whoever calls a tool waits for it
        assert expert.token_ids[given:] == [*chat.encode(written), *ends]
        assert set(expert.kinds[given:]) == {TokenKind.EXPERT}
        assert expert.off_policy and expert.reward == 1.0
        (made,), _ = sample_groups([group], ObjectiveSettings())
        assert [sample.advantages[-1] > 0 for sample in made.samples] == [False, False, True]
        short = OffPolicyMixing(ExpertSource([SOLVED], chat, len(expert.token_ids) - 1), 1)
        assert short.mixed([TrajectoryGroup(row, tried)])[0].off_policy == []
        assert short.source.metrics()["too_long"] == 1
        store = ReplayStore()
        store.remember([TrajectoryGroup(SOLVED.question, [replace(tried[0], correct=True, end="answer")])])
        assert OffPolicyMixing(store, 1).mixed([TrajectoryGroup(row, tried)])[0].off_policy == []
