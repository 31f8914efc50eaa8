"""Less retrieval for what the policy gets right without."""

from __future__ import annotations

import pytest

from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.envs.expert_starts import GuidedQuestions
from rapo_rllib.envs.unaided_success import UnaidedSuccess, unaided_rate
from rapo_rllib.types import Question, RetrievedTrace, StepTrace, Trajectory, TrajectoryGroup

TRACE = RetrievedTrace(StepTrace("t", "", "", "<calc>1+1</calc>", 1.0), 0.9)


def question(number: int) -> Question:
    return Question(f"q{number}", f"Question {number}?", "2")


def group(of: Question, alone: list[bool], helped: list[bool]) -> TrajectoryGroup:
    made = [Trajectory(of.id, (), correct=right, end="answer") for right in [*alone, *helped]]
    for trajectory in made[len(alone) :]:
        trajectory.append_retrieved([1], TRACE)
    return TrajectoryGroup(of, made)


@pytest.mark.parametrize(
    ("right", "count", "overall", "rate"), [(0, 0, 0.25, 0.25), (6, 6, 0.25, 0.8125), (0, 6, 0.5, 0.125), (1, 2, 0.5, 0.5)]
)
def test_the_rate_by_hand(right: int, count: int, overall: float, rate: float) -> None:
    assert unaided_rate(right, count, overall) == pytest.approx(rate)


def test_a_question_retrieves_less_the_more_of_its_unaided_trajectories_are_right() -> None:
    made = UnaidedSuccess()
    assert made.share(question(0)) == 1.0
    found = made.learn(
        [group(question(0), alone=[True] * 3, helped=[False] * 5), group(question(1), alone=[False] * 3, helped=[True])]
    )
    assert found == {"unaided/accuracy": 0.5, "unaided/retrieval_share": 1.0}
    assert made.share(question(0)) == pytest.approx(1 - (3 + 2 * 0.5) / 5)
    assert made.share(question(1)) == pytest.approx(1 - (0 + 2 * 0.5) / 5)
    assert made.share(question(2)) == pytest.approx(0.5)


def test_old_outcomes_are_forgotten() -> None:
    made = UnaidedSuccess()
    for _ in range(8):
        made.learn([group(question(0), alone=[False] * 8, helped=[])])
    for _ in range(8):
        made.learn([group(question(0), alone=[True] * 8, helped=[])])
    assert made.overall == 1.0 and made.share(question(0)) == 0.0


def test_questions_that_are_handed_out_have_their_share_and_a_restored_run_the_same() -> None:
    made = UnaidedSuccess()
    made.learn([group(question(3), alone=[True] * 6, helped=[])])
    order = GuidedQuestions(QuestionCursor([question(n) for n in range(5)]), None, None, made)
    shares = {asked.id: asked.retrieval_share for _, asked in order.take_places(5)}
    assert shares == {f"q{n}": 0.0 for n in range(5)}  # all that is known was right
    made.learn([group(question(4), alone=[False] * 6, helped=[])])
    other = UnaidedSuccess()
    other.set_state(made.get_state())
    asked = [question(n) for n in range(6)]
    assert [other.share(q) for q in asked] == [made.share(q) for q in asked] and 0 < made.share(asked[3]) < made.share(asked[4])
    other.set_state(None)
    assert other.share(asked[3]) == 1.0
