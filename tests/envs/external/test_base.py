"""The part that all adapters share, over the smallest environment: rewards of one turn, ends, calls that are none."""

from __future__ import annotations

import pytest

from rapo_rllib.envs.external.base import ExternalEnv, Played
from rapo_rllib.protocol.turns import Call, Turn
from rapo_rllib.types import Question


class Stairs(ExternalEnv):
    """Pays a third for each step up; the third is the top."""

    def begin(self, question: Question) -> str:
        self.height = 0
        return "You stand below."

    def play(self, action: str) -> Played:
        self.height += action == "up"
        return Played(f"height {self.height}", (action == "up") / 3, terminated=self.height == 3)


def begun(format: str = "native") -> Stairs:
    env = Stairs({"action_tag": "act", "protocol": {"format": format}})
    env.reset(options={"question": Question("q", "Climb.", "")})
    return env


def turn(*actions: str, name: str = "act") -> Turn:
    return Turn.of("", calls=tuple(Call(name, {"action": action}) for action in actions), native=True)


def test_a_turn_earns_what_all_its_calls_earn() -> None:
    env = begun()
    observation, reward, terminated, *_ = env.step(turn("up", "up"))
    assert (str(observation), reward, terminated) == ("height 1\nheight 2", 2 / 3, False)
    observation, reward, terminated, _, info = env.step(turn("up", "up"))
    assert (reward, terminated, info["correct"]) == (1 / 3, True, True), "all together earned 1"
    assert env.height == 3 and str(observation) == "height 3\nThe episode is over: this was not done."
    assert [error for _, error, _ in info["tool_calls"]] == [None, "over"]


@pytest.mark.parametrize(
    ("call", "tool", "error", "told"),
    [
        (Call("move", {"action": "up"}), "unknown", "unknown", "Error: there is no tool 'move'; the tools are: act"),
        (Call("act", {"action": 1}), "act", "arguments", "1 is not of type 'string'"),
        (Call("act", {}, problem="no JSON"), "act", "malformed", "Error: no JSON"),
    ],
)
def test_what_is_no_call_is_not_played(call: Call, tool: str, error: str, told: str) -> None:
    env = begun()
    assert env.tool_tags == () and env.tool_schemas is not None
    assert env.tool_schemas[0]["function"]["name"] == "act"
    observation, reward, terminated, _, info = env.step(Turn.of("", calls=(call,), native=True))
    assert told in observation and (reward, terminated, env.height) == (0.0, False, 0)
    assert (info["tool"], info["tool_error"]) == (tool, error)


@pytest.mark.parametrize("format", ["native", "tags"])
def test_an_episode_that_a_budget_ends_is_wrong_and_over(format: str) -> None:
    env = begun(format)
    env.step(turn("up") if format == "native" else "<act>up</act>")
    assert env.truncate() == (0.0, {"correct": False, "format_ok": False})
    with pytest.raises(Exception, match="after the end of an episode"):
        env.step("<act>up</act>")
