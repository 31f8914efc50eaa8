"""``rapo/openenv`` against real servers of openenv-core: played, killed, hung, full, guarded; and one that tells nonsense."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from long_game import ROOMS
from scripted import ScriptedEngine, env_loop
from servers import Served

from rapo_rllib.errors import EnvError
from rapo_rllib.rollout.env_calls import check_copies
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.types import Question, TrajectoryGroup

pytest.importorskip("websockets")
pytest.importorskip("openenv.core", reason="pip install --no-deps openenv-core, and fastmcp")

from rapo_rllib.envs.external import openenv_env
from rapo_rllib.envs.external.openenv_env import OpenEnv

pytestmark = pytest.mark.process
ASKED = Question("seed-3", "", seed=3)


@pytest.fixture
def house(house_url: str) -> dict[str, Any]:
    return {"url": house_url, "observation_field": "text"}


def served(*sessions: str) -> Served:
    return Served("openenv_house.py", *sessions)


def begun(env: OpenEnv) -> str:
    text, _ = env.reset(options={"question": ASKED})
    return text


def right_move(seen: str) -> str:
    return ROOMS[seen.rpartition("You are in the ")[2].partition(".")[0]][1]


def test_an_episode_with_a_reward_per_step(house: dict[str, Any]) -> None:
    env = OpenEnv(house)
    seen = begun(env)
    assert seen.startswith("You are in an old house")
    rewards = []
    terminated = False
    while not terminated:
        seen, reward, terminated, _, info = env.step(right_move(seen))
        rewards.append(reward)
    assert rewards == [0.25] * 4 and info["correct"]
    assert begun(env).startswith("You are in an old house"), "the session serves the next episode"
    assert env.step("stand still")[1:3] == (0.0, False)
    env.close()


def test_a_seed_makes_the_same_episode_in_every_session(house: dict[str, Any]) -> None:
    env, other = OpenEnv(house), OpenEnv(house)
    assert begun(other) == begun(env)
    seen = other.step("wait")[0]
    assert env.step(right_move(seen))[1] == 0.25, "the other's moves are not in this session"
    env.close()
    other.close()


def test_fields_of_actions_and_observations(house: dict[str, Any]) -> None:
    env = OpenEnv({**house, "observation_field": None})
    assert begun(env).startswith("You are in an old house"), "its one text"
    env.close()
    env = OpenEnv({**house, "observation_field": "loudness"})
    assert begun(env) == "0" and env.step("shout")[0] == "1"
    env.close()
    env = OpenEnv({**house, "action_field": None})
    seen = begun(env)
    told, _, _, _, info = env.step("no json")
    assert told.startswith("Error: an action is a JSON object") and "tool_error" in info
    told, _, _, _, info = env.step('{"message": "wait", "loudness": "very"}')
    assert told.startswith("Error: loudness: Input should be a valid integer") and info["tool_error"] == "arguments"
    assert env.step(json.dumps({"message": right_move(seen)}))[1] == 0.25, "the session has gone on"
    env.close()


def rolled_out(config: dict[str, Any], script: Callable[[str], str], size: int = 3) -> tuple[TrajectoryGroup, RolloutLoop]:
    loop = env_loop(lambda: OpenEnv(config), ScriptedEngine(script), group_size=size)
    (group,) = loop.run([ASKED])
    loop.close()
    return group, loop


def test_in_a_rollout_each_step_keeps_its_reward(house: dict[str, Any]) -> None:
    group, loop = rolled_out(house, right_move)
    for trajectory in group.trajectories:
        assert trajectory.step_rewards == [0.25] * 4 and trajectory.correct
    assert loop.stats.ends == {"eos": 3}


def test_a_server_that_dies_costs_its_trajectories() -> None:
    def script(so_far: str) -> str:
        return "die" if "<result>" in so_far else right_move(so_far)

    with served() as house:
        config = {"url": house.url, "observation_field": "text"}
        env = OpenEnv(config)
        begun(env)
        group, loop = rolled_out(config, script)
        assert loop.stats.ends == {"error": 3} and all(t.failed for t in group.trajectories)
        house.start()  # it is back
        group, loop = rolled_out(config, right_move)
        assert loop.stats.ends == {"eos": 3} and all(t.step_rewards == [0.25] * 4 for t in group.trajectories)
        assert begun(env).startswith("You are in an old house"), "in a new session"
        env.close()


def test_a_move_at_which_the_server_raises_is_an_error_of_its_trajectory(house: dict[str, Any]) -> None:
    group, loop = rolled_out(house, lambda so_far: "raise", size=2)
    assert [t.end for t in group.trajectories] == ["error"] * 2 and loop.stats.ends == {"error": 2}
    assert "the floor gives way (EXECUTION_ERROR)" in group.trajectories[0].error


def test_a_hung_server_is_given_up_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as house:
        env = OpenEnv({"url": house.url, "observation_field": "text"})
        begun(env)
        monkeypatch.setattr(openenv_env, "ANSWER_S", 5.0)
        start = time.monotonic()
        with pytest.raises(EnvError, match="step: the server has not answered within 5 s"):
            env.step("hang")
        assert time.monotonic() - start < 120
        with pytest.raises(EnvError, match="the session is lost"):
            env.step("wait")
        env.close()


def test_a_full_server_says_what_to_do() -> None:
    with served("1") as house:
        env, other = (OpenEnv({"url": house.url, "observation_field": "text"}) for _ in range(2))
        begun(env)
        with pytest.raises(EnvError, match=r"CAPACITY_REACHED\); start it with more sessions \(max_concurrent_envs\)"):
            begun(other)
        env.close()
        other.close()


def test_a_token_opens_a_guarded_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_TOKEN", "s3cret")
    with served() as house:
        env = OpenEnv({"url": house.url, "token_env": "HOUSE_TOKEN", "observation_field": "text"})
        assert begun(env).startswith("You are in an old house")
        with pytest.raises(ValueError, match=r"does not answer: .*(403|1008|rejected)") as caught:
            OpenEnv({"url": house.url, "observation_field": "text"})
        assert "s3cret" not in str(caught.value)
        env.close()


def observation(data: str) -> str:
    return f'{{"type": "observation", "data": {{"observation": {data}}}}}'


@pytest.fixture
def liar() -> Iterator[Callable[..., str]]:
    """Makes servers that answer the reset as they should, and a step with what they are told to say."""
    from websockets.sync.server import serve

    made = []

    def make(*said: str | bytes) -> str:
        def answer(socket: Any) -> None:
            for message in socket:
                kind = json.loads(message)["type"]
                if kind == "reset":
                    socket.send(observation('{"text": "Hello."}, "reward": null, "done": false'))
                elif kind == "step":
                    for one in said:
                        socket.send(one)

        server = serve(answer, "127.0.0.1", 0)
        made.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.socket.getsockname()[1]}"

    yield make
    for server in made:
        server.shutdown()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("not json", "sent no message of OpenEnv: 'not json'"),
        ("[1]", "sent no message of OpenEnv"),
        ('{"type": "state", "data": {}}', "sent no message of OpenEnv"),
        (observation('"text"'), "sent no message of OpenEnv"),
        (observation('{}, "reward": "much"'), "sent no message of OpenEnv"),
        (
            '{"type": "error", "data": {"message": "gone", "code": "SESSION_ERROR"}}',
            r"environment failed: gone \(SESSION_ERROR\)",
        ),
        (b"\xff\xfe", "sent no message of OpenEnv"),
    ],
)
def test_bad_messages(liar: Callable[..., str], said: str | bytes, message: str) -> None:
    env = OpenEnv({"url": liar(said)})
    assert begun(env) == "Hello."
    with pytest.raises(EnvError, match=message):
        env.step("go")
    env.close()


def test_a_field_that_no_observation_has(liar: Callable[..., str]) -> None:
    env = OpenEnv({"url": liar(), "observation_field": "txt"})
    with pytest.raises(EnvError, match=r"observation_field = 'txt': the observations of .* have text"):
        begun(env)
    env.close()


def test_it_does_not_branch(liar: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match=r"OpenEnv cannot be copied .*its state is with a server"):
        check_copies(OpenEnv({"url": liar()}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "env_config.url = '': must begin with http://"),
        ({"url": "host:8000"}, "env_config.url = 'host:8000': must begin with http://"),
        ({"url": "http://me:word@host"}, "env_config.url holds a user name or a password"),
        ({"url": "http://a", "token_env": "RAPO_NOT_SET"}, "env_config.token_env = 'RAPO_NOT_SET': is not set"),
        ({"url": "http://a", "reset": {"seed": 1}}, "env_config.reset = .*: leave seed out"),
        ({"url": "http://127.0.0.1:9"}, "env_config.url = 'http://127.0.0.1:9' does not answer: the server cannot be reached"),
    ],
)
def test_bad_keys_and_unreachable_servers(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        OpenEnv(given)
    assert "word" not in str(caught.value).replace("password", "")


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets", None)
    openenv_env._check_server.cache_clear()
    with pytest.raises(ValueError, match=r"needs the package websockets: pip install 'rapo_rllib\[openenv\]'"):
        OpenEnv({"url": "http://127.0.0.1:9"})
