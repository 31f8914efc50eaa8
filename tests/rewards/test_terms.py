import math
from types import SimpleNamespace

import pytest

from rapo_rllib.envs.options import ToolEnvOptions, read_options
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.rewards.score import WRONG, Episode, EpisodeStep, Score
from rapo_rllib.rewards.terms import RewardOptions, reward_terms, step_rewards, well_formed
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.types import Question

GOOD = "<think>Add.</think><answer>\\boxed{8}</answer>"
HALF = Score(0.5, False)
FULL = Score(1.0, True)
WEIGHTS = {"correct": 2.0, "format": 0.25, "bad_format": -1.0, "all_tools": 0.5, "tool_error": -0.125}


@pytest.mark.parametrize(
    ("keys", "score", "episode", "total"),
    [
        ({}, FULL, {"format_ok": True, "all_tools": True}, 1.0),  # the defaults: the score and nothing else
        ({}, HALF, {"format_ok": False, "all_tools": True}, 0.5),
        (WEIGHTS, FULL, {"format_ok": True, "all_tools": False}, 2.25),  # 2 * 1 + 0.25
        (WEIGHTS, FULL, {"format_ok": True, "all_tools": True}, 2.75),  # + 0.5
        (WEIGHTS, FULL, {"format_ok": True, "all_tools": True, "tool_errors": 2}, 2.5),  # - 2 * 0.125
        (WEIGHTS, FULL, {"format_ok": False, "all_tools": True}, 1.5),  # 2 - 1 + 0.5
        (WEIGHTS, HALF, {"format_ok": True, "all_tools": True}, 1.25),  # 2 * 0.5 + 0.25, no bonus
        (WEIGHTS | {"all_tools_for": "partial"}, HALF, {"format_ok": True, "all_tools": True}, 1.75),
        (WEIGHTS | {"all_tools_for": "partial"}, WRONG, {"format_ok": True, "all_tools": True}, 0.25),
        (WEIGHTS | {"strict_format": True}, FULL, {"format_ok": False, "all_tools": True}, -1.0),  # nothing else
        (WEIGHTS | {"strict_format": True}, FULL, {"format_ok": False, "all_tools": True, "tool_errors": 1}, -1.125),
        (
            WEIGHTS,
            Score(0.7, True, {"correct": 1.0, "short": -0.3}),
            {"format_ok": True, "all_tools": False},
            1.65,
        ),  # 2 * 0.7 + 0.25
    ],
)
def test_terms_add_up(keys: dict, score: Score, episode: dict, total: float) -> None:
    assert math.fsum(reward_terms(score, RewardOptions(**keys), **episode).values()) == pytest.approx(total)


CALL = EpisodeStep("<think>Add.</think><python>3 + 5</python>", "python", "8")


@pytest.mark.parametrize(
    ("steps", "final_step", "whole_text"),
    [
        ([GOOD], True, True),
        ([CALL, GOOD], True, True),
        (["<answer>\\boxed{8}</answer>"], True, False),  # no thought
        (["<think><think>Add.</think><answer>\\boxed{8}</answer>"], True, False),  # a thought that does not end
        ([GOOD + " That is it."], False, True),  # text after the answer
        (["<think>Add.</think><answer>8</answer>"], False, False),  # no box
        (["<think>Add.</think><answer>\\boxed{8</answer>"], False, False),  # a box that does not close
        (["<think>Add.</think><answer>\\boxed{7}\\boxed{8}</answer>"], False, True),  # two boxes: the last counts
        ([GOOD + GOOD], False, False),  # two answers
        (["<think>\\boxed{7}</think><answer>\\boxed{8}</answer>"], True, True),  # a box elsewhere says nothing
        (["<think>Add.</think>\\boxed{8}<answer>8</answer>"], False, False),  # nor does it stand for the answer's
        (["<think>Add.</think><answer>\\boxed{\\boxed{8}}</answer>"], False, True),  # a box in a box
        (["<think>Add.</think><answer><answer>\\boxed{8}</answer>"], False, False),
        (["<think>Add.</think><answer>\\boxed{8}</answer></answer>"], False, False),
        (["<think>Add.</think></answer>\\boxed{8}<answer>"], False, False),
        (["<think>Use <python>.</think><answer>\\boxed{8}</answer>"], True, False),  # a call that has no result
        ([CALL, "<think>Or <python>9</python>?</think><answer>\\boxed{8}</answer>"], True, False),
        ([CALL, CALL, GOOD], True, True),
        ([""], False, False),
    ],
)
def test_formats(steps: list, final_step: bool, whole_text: bool) -> None:
    episode = Episode(tuple(EpisodeStep(step) if isinstance(step, str) else step for step in steps))
    assert well_formed(episode, "final_step", ["python"], require_boxed=True) == final_step
    assert well_formed(episode, "whole_text", ["python"], require_boxed=True) == whole_text


def test_the_text_of_an_episode() -> None:
    assert Episode((CALL, EpisodeStep(GOOD))).text == f"{CALL.text}\n<result>\n8\n</result>\n{GOOD}"


def test_steps_have_what_the_scorer_and_their_failed_calls_earned_them() -> None:
    """Two calls of the first generated step, one of the second, and the answer."""
    calls = [EpisodeStep("a", "t", "1"), EpisodeStep("", "t", "2", "timeout"), EpisodeStep("b", "t", "3", turn=1)]
    steps = [*calls, EpisodeStep("c", turn=2)]
    score, options = Score(1.0, True, steps=(0.5, 0.25, 1.0, 2.0)), RewardOptions(steps=2.0, tool_error=-0.125)
    assert step_rewards(score, options, steps) == [2 * 0.75 - 0.125, 2.0, 4.0]
    terms = reward_terms(score, options, format_ok=True, all_tools=False, tool_errors=1)
    assert terms["steps"] == 7.5 and math.fsum(terms.values()) == 1 + 7.5 - 0.125
    assert step_rewards(FULL, RewardOptions(), steps) == [0.0] * 3 and step_rewards(FULL, options, []) == []
    with pytest.raises(ValueError, match="4 rewards of steps, of an episode of 3 steps"):
        step_rewards(score, options, calls)


def test_a_term_follows_its_schedule_and_ends_with_its_last_point() -> None:
    """Half-way down at env step 10, two stages of R1-Searcher before and behind 20,000."""
    options = RewardOptions(called_tool=((0, 0.5), (20, 0.0)))
    assert [options.at(steps).called_tool for steps in (0, 10, 20, 99, None)] == [0.5, 0.25, 0.0, 0.0, 0.0]
    found = read_options(ToolEnvOptions, {"reward": "r1_searcher"}).reward
    for steps, total in ((0, 1.0), (20000, 1.0), (20001, 0.5), (None, 0.5)):
        terms = reward_terms(HALF, found.at(steps), format_ok=True, all_tools=False, called_tool=True)
        assert math.fsum(terms.values()) == total, steps
    bad = [reward_terms(HALF, found.at(steps), format_ok=False, all_tools=False) for steps in (0, None)]
    assert [math.fsum(terms.values()) for terms in bad] == [0.0, -1.5]


@pytest.mark.parametrize("value", [[[5, 0.5]], [[0, "x"]], True, float("nan"), [[0, 1], [0, 2]]])
def test_a_weight_that_is_no_schedule_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"env_config.reward.called_tool"):
        read_options(ToolEnvOptions, {"reward": {"called_tool": value}})


def test_the_environment_pays_what_is_in_force() -> None:
    env = ToolEnv({"tools": ["calculator"], "reward": {"correct": 0.0, "called_tool": [[0, 0.5], [20, 0.0]]}})
    pool, paid = EnvPool(lambda: env, "answer"), []
    for steps in (0, 10, None):
        borrower = SimpleNamespace(env=None, stop=(), env_failed=False, plan=SimpleNamespace(env_steps=steps))
        pool.acquire(borrower)
        env.reset(options={"question": Question("q", "?", "2")})
        env.step("<calculator>1 + 1</calculator>")
        paid.append(env.step("<answer>\\boxed{2}</answer>")[1])
        pool.release(borrower)
    assert paid == [0.5, 0.25, 0.0]
