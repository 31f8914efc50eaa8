"""Which of the policy's own steps enter the buffer, and which leave: hand-worked."""

import pytest

from rapo_rllib.buffer.growth import GrownTraces, grown_candidates
from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question, StepTrace, Trajectory, TrajectoryGroup

PROTOCOL = ProtocolSettings()
CALL, ANSWER = "<python>3 + 5</python>", "<answer>8</answer>"


def rolled_out(*steps: tuple[str, str], reward: float = 1.0, correct: bool = True, end: str = "answer") -> Trajectory:
    """A trajectory of (generated text, observation) steps."""
    trajectory = Trajectory("q", [1], question_text="What?", reward=reward, correct=correct, end=end, policy_version=7)
    for text, observation in steps:
        step = trajectory.append_policy([2, 3], [-1.0, -1.0], [1.0, 1.0])
        step.text, step.observation = text, observation
    return trajectory


def candidates(growth: str, *trajectories: Trajectory, level: str = "step") -> list[StepTrace]:
    return grown_candidates([TrajectoryGroup(Question("q", "What?", "8"), list(trajectories))], growth, PROTOCOL, level)


def test_a_trajectory_is_cut_as_an_experts_is() -> None:
    first, second = candidates("successful", rolled_out((CALL, "8"), (ANSWER, "")))
    assert (first.history, first.text) == ("", f"{CALL}\n<result>\n8\n</result>\n")
    assert (second.history, second.text, second.step_index) == (first.text, ANSWER, 1)
    assert {(t.question, t.question_id, t.source, t.weight_version, t.reward) for t in (first, second)} == {
        ("What?", "q", "policy", 7, 1.0)
    }
    assert first.id == trace_id("What?", "", first.text, "policy")


def test_whole_trajectories_where_those_are_retrieved() -> None:
    (whole,) = candidates("successful", rolled_out((CALL, "8"), (ANSWER, "")), level="trajectory")
    assert (whole.history, whole.text) == ("", f"{CALL}\n<result>\n8\n</result>\n{ANSWER}")


GOOD, BAD, HALF = (
    rolled_out((ANSWER, "")),
    rolled_out((ANSWER, ""), reward=0, correct=False),
    rolled_out((CALL, ""), reward=0.5),
)


@pytest.mark.parametrize(
    ("growth", "group", "entered"),
    [
        ("none", [GOOD, BAD], 0),
        ("successful", [GOOD, BAD], 1),
        ("successful", [GOOD, GOOD], 2),
        ("advantage", [GOOD, BAD], 1),
        ("advantage", [GOOD, GOOD], 0),  # equal rewards: nobody is better than the others
        ("advantage", [BAD, rolled_out((CALL, ""), reward=-1, correct=False)], 0),  # above the mean, but no reward
        ("advantage", [GOOD, HALF, BAD], 1),  # the mean is 0.5
        ("successful", [rolled_out((ANSWER, ""), end="length")], 0),
        ("advantage", [rolled_out((ANSWER, ""), end="error"), BAD], 0),
        ("advantage", [GOOD, rolled_out((ANSWER, ""), reward=0.0, end="error")], 0),  # who crashed lowers no mean
    ],
)
def test_who_enters(growth: str, group: list[Trajectory], entered: int) -> None:
    assert len(candidates(growth, *group)) == entered


def test_a_failed_tool_call_is_no_example() -> None:
    trajectory = rolled_out((CALL, "NameError"), (ANSWER, ""))
    trajectory.steps[0].tool_error = "failed"
    (only,) = candidates("successful", trajectory)
    assert only.text == ANSWER and "NameError" in only.history
    assert candidates("successful", trajectory, level="trajectory") == []


def test_a_branch_brings_its_own_steps_only() -> None:
    trunk = rolled_out((CALL, "8"))
    branch = trunk.fork(1)
    branch.segments = [(0, 0), (2, 1)]
    step = branch.append_policy([4], [-1.0], [1.0])
    step.text = ANSWER
    assert [t.text for t in candidates("successful", branch)] == [ANSWER]


def trace(text: str, version: int = 0, reward: float = 1.0, question: str = "What?") -> StepTrace:
    return StepTrace(trace_id(question, "", text), question, "", text, reward, source="policy", weight_version=version)


def test_duplicates_are_one_and_stay_young() -> None:
    kept = GrownTraces(max_traces=2)
    change = kept.add([trace("Add 3."), trace("add  3."), trace("Add 3.", question="Other?")])
    assert (change, len(kept)) == ({"added": 2, "removed": 0, "duplicates": 1}, 2)
    change = kept.add([trace("ADD 3.", version=9)])
    assert change == {"added": 0, "removed": 0, "duplicates": 1}
    change = kept.add([trace("Subtract.", version=9)])  # the one that was not written again is the oldest
    assert change["removed"] == 1 and trace("Add 3.", question="Other?").id not in kept.traces
    again = kept.traces[trace("Add 3.").id]
    assert (again.text, again.weight_version) == ("Add 3.", 9)


def test_a_trace_keeps_its_best_reward() -> None:
    kept = GrownTraces(max_traces=2)
    for reward, version in ((0.5, 3), (1.0, 1), (0.2, 2)):
        kept.add([trace("Add 3.", version, reward)])
    (only,) = kept.traces.values()
    assert (only.reward, only.weight_version) == (1.0, 3)


def test_the_oldest_leave_and_of_one_version_the_worse() -> None:
    kept = GrownTraces(max_traces=2)
    good, bad, new = trace("good"), trace("bad", reward=0.5), trace("new", 1)
    kept.add([good, bad])
    kept.add([new])
    assert set(kept.traces) == {good.id, new.id}
    kept.add([trace("newer", 2)])
    assert good.id not in kept.traces and new.id in kept.traces
    assert not any(kept.add([trace("late", 0)]).values())  # came and left at once


def test_state() -> None:
    kept, other = GrownTraces(3), GrownTraces(3)
    kept.add([trace("a", 1), trace("b", 2), trace("A", 5)])
    other.add([trace("z")])
    other.set_state(kept.get_state())
    assert other.traces == kept.traces
    for both in (kept, other):
        both.add([trace("c", 6), trace("d", 6), trace("B ", 7)])
    assert other.get_state() == kept.get_state() and len(other) == 3
