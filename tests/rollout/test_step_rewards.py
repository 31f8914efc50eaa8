"""What steps earn and where they start from, from environments and scorers into trajectories."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

from scripted import CalculatorEnv, ScriptedEngine, scripted_loop

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.rewards import Episode, Score
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question, Trajectory

PROTOCOL = ProtocolSettings(system_prompt="")


def script(so_far: str, tool: str = "python") -> str:
    calls = so_far.count("<result>")
    return f"<{tool}>{calls} + 1</{tool}>" if calls < 2 else "<answer>\\boxed{2}</answer>"


def rolled_out(make_env: Any, tool: str = "python", **rollout: Any) -> Trajectory:
    with closing(scripted_loop(ScriptedEngine(partial(script, tool=tool)), make_env, group_size=1, **rollout)) as loop:
        ((trajectory,),) = (group.trajectories for group in loop.run([Question("q", "What is 1 + 1?", "2")]))
    return trajectory


class PaidSteps(CalculatorEnv):
    """Pays as it goes, tells its state, and says at the end what earlier steps had earned."""

    at_the_end: tuple[float, ...] = (0.0, 0.25)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        observation, _, end, truncated, info = super().step(action)
        if end:
            return observation, 1.0, True, False, {**info, "step_rewards": list(self.at_the_end)}
        return observation, 0.5, False, truncated, {**info, "state": f"saw {observation}"}


class PaidTooMany(PaidSteps):
    """Pays four steps where there are three."""

    at_the_end = (1.0, 1.0, 1.0, 1.0)


def test_an_environments_rewards_stay_with_their_steps() -> None:
    found = rolled_out(PaidSteps)
    assert [step.reward for step in found.steps] == [0.5, 0.5, 1.0]  # as they were paid
    assert found.step_rewards == [0.5, 0.75, 0.75] and found.reward == 2.0
    assert [step.state for step in found.steps] == ["", "saw 1", "saw 2"]


def test_a_reward_of_a_step_that_there_is_not_is_an_error() -> None:
    found = rolled_out(PaidTooMany)
    assert found.failed and "info['step_rewards'] has 4 rewards for 3 steps" in found.error


def each_step(answer: str | None, question: Question, episode: Episode) -> Score:
    """The first step is worth most."""
    return Score(1.0, True, steps=[3.0, 2.0, 1.0][: len(episode.steps)])


def test_a_scorers_rewards_stay_with_their_steps() -> None:
    options = {"tools": ["calculator"], "scorer": f"{__name__}:each_step", "reward": {"steps": 0.5}}
    found = rolled_out(lambda: ToolEnv(options), "calculator")
    assert found.step_rewards == [1.5, 1.0, 1.5]  # the last: the answer's 1, and half of 1
    assert (found.reward, found.reward_terms["steps"]) == (4.0, 3.0)
    assert [step.reward for step in found.steps] == [0.0, 0.0, 4.0]
