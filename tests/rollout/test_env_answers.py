"""What an environment returns and cannot be: its own error, named, which costs that trajectory alone."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scripted import CalculatorEnv, ScriptedEngine, scripted_loop
from test_loop import QUESTIONS

from rapo_rllib.errors import EnvError
from rapo_rllib.protocol.turns import Observation
from rapo_rllib.rollout.env_answers import first_observation, judgement, step_result

GOOD = {"observation": "seen", "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
BAD = [
    *[({"reward": value}, "reward = ") for value in (float("nan"), None, "1", float("inf"), -float("inf"), 1e300, 10**400)],
    *[({"reward": value}, "reward = ") for value in (1j, [1.0], {}, np.array([1.0]), np.float32("nan"))],
    *[({"observation": value}, "observation = ") for value in ({}, None, b"seen", np.zeros(2), 3, ["seen"], ("seen",))],
    *[({"terminated": value}, "terminated = ") for value in (None, "no", {}, 2, float("nan"))],
    ({"truncated": {}}, "truncated = "),
    *[({"info": value}, "info = ") for value in (None, [("a", 1)], "a")],
    *[({"info": {"step_rewards": value}}, "info['step_rewards'] = ") for value in (None, 1.0, ["1"], [float("nan")])],
    *[({"info": {"tool_seconds": value}}, "info['tool_seconds'] = ") for value in (None, "1", float("inf"))],
    *[
        ({"info": {"tool_calls": value}}, "info['tool_calls'] = ")
        for value in (None, ["python"], [("a", 1)], [("a", None, "1")])
    ],
    *[({"info": {"reward_terms": value}}, "info['reward_terms'] = ") for value in (None, [1], {"a": "1"}, {1: 1.0})],
    ({"info": {"tool": 3}}, "info['tool'] = "),
    ({"info": {"tool_error": True}}, "info['tool_error'] = "),
    ({"info": {"correct": "no"}}, "info['correct'] = "),
    ({"info": {"format_ok": None}}, "info['format_ok'] = "),
    ({"info": {"step_right": "yes"}}, "info['step_right'] = "),
    ({"info": {"end": 1}}, "info['end'] = "),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=repr)
def test_a_part_that_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=re.escape(message)):
        step_result(tuple({**GOOD, **change}.values()))


@pytest.mark.parametrize(
    "returned", [None, "seen", [*GOOD.values()], tuple(GOOD.values())[:4], (*GOOD.values(), 1), "abcde", GOOD], ids=repr
)
def test_a_step_returns_a_tuple_of_five(returned: Any) -> None:
    with pytest.raises(EnvError, match=r"must return the tuple \(observation, reward, terminated, truncated, info\)"):
        step_result(returned)


@pytest.mark.parametrize("returned", ["What?", "ab", ("What?",), None, ["What?", {}], ("What?", {}, 1), {"text": 1, "info": 2}])
def test_a_reset_returns_a_tuple_of_two(returned: Any) -> None:
    with pytest.raises(EnvError, match=r"must return the tuple \(observation, info\)"):
        first_observation(returned)
    with pytest.raises(EnvError, match="observation = "):
        first_observation((returned if not isinstance(returned, str) else None, {}))


@pytest.mark.parametrize("returned", [None, 1.0, (1.0,), (float("nan"), {}), ("1", {}), (1.0, None)], ids=repr)
def test_so_does_a_judgement(returned: Any) -> None:
    with pytest.raises(EnvError, match=r"must return the tuple \(reward, info\)|reward = |info = "):
        judgement(returned)


def test_what_gymnasiums_environments_return_is_taken() -> None:
    for reward, flag in (
        (1, np.bool_(True)),
        (np.float32(1), 1),
        (np.int64(1), True),
        (True, np.int64(1)),
        (np.bool_(True), 1),
    ):
        result = step_result((np.str_("seen"), reward, flag, False, {"mine": object(), "step_rewards": np.ones(2)}))
        assert (result.observation, result.reward, result.terminated, result.truncated) == ("seen", 1.0, True, False)
    assert step_result((Observation.of(["a", "\ud800"]), 0, False, False, {})).observation.parts == ("a", "?")  # type: ignore[attr-defined]
    assert judgement((-1, {"correct": True})).info == {"correct": True, "format_ok": False}


class Odd(CalculatorEnv):
    """Answers one question with what it is told to."""

    where, returned = "step", None

    def reset(self, **options: Any) -> Any:
        answer = super().reset(**options)
        return self.returned if self.where == "reset" and self.question.id == QUESTIONS[0].id else answer

    def step(self, action: str) -> Any:
        answer = super().step(action)
        return self.returned if self.where == "step" and self.question.id == QUESTIONS[0].id else answer


@pytest.mark.parametrize(
    ("where", "returned", "message"),
    [
        ("step", ("", float("nan"), True, False, {}), "reward = nan (float): must be a finite number"),
        ("step", ("", None, True, False, {}), "reward = None (NoneType)"),
        ("step", ({"text": "8"}, 0.0, False, False, {}), "observation = {'text': '8'} (dict): must be a text"),
        ("step", ("", 0.0, False, {}), "returned a tuple of 4: must return"),
        ("step", ("8", 0.0, False, False, {"tool_seconds": None}), "info['tool_seconds'] = None"),
        ("step", ("", 1.0, True, False, {"step_rewards": None}), "info['step_rewards'] = None"),
        ("reset", "What?", "returned str: must return the tuple (observation, info)"),
        ("reset", ("What?",), "returned a tuple of 1"),
    ],
)
def test_it_costs_that_trajectory_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str, returned: Any, message: str
) -> None:
    monkeypatch.setattr(Odd, "where", where)
    monkeypatch.setattr(Odd, "returned", returned)
    loop = scripted_loop(ScriptedEngine(lambda so_far: "<answer>2</answer>"), Odd, group_size=2)
    odd, *others = loop.run(QUESTIONS)
    loop.close()
    for trajectory in odd.trajectories:
        assert (trajectory.end, trajectory.reward) == ("error", 0.0)
        assert f"env.{where} failed: " in trajectory.error and message in trajectory.error
    assert all(trajectory.end == "answer" for group in others for trajectory in group.trajectories)
    assert all(re.search(r"trajectory \S+, step 0, ", record.message) for record in caplog.records) and len(caplog.records) == 2
