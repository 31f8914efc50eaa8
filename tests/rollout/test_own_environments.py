"""A user's own text environment, the game of ``tuned_examples``: gymnasium's checker passes it, and so does the rollout."""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from ray.tune.registry import register_env
from scripted import ScriptedEngine, scripted_loop

from rapo_rllib import RAPOConfig
from rapo_rllib.cli.train.checks import _named_env
from rapo_rllib.types import TrajectoryGroup

EXAMPLES = Path(__file__).resolve().parents[2] / "tuned_examples"
GSM8K_ROWS = '{"question": "What is 1 + 1?", "answer": "2"}\n{"question": "What is 2 + 2?", "answer": "4"}\n'


@pytest.fixture
def hunt(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the game, as ``rllib train file`` finds it: beside the YAML file."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import treasure_hunt

    return treasure_hunt


def checked(env: gymnasium.Env) -> None:
    """Gymnasium's checker has nothing to say, not even a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)  # a text game draws nothing
    env.close()


def test_gymnasiums_checker_passes_ours(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(GSM8K_ROWS)
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "What is 1 + 1?", "reward_spec": {"ground_truth": "2"}}\n')
    configs: dict[str, dict[str, Any]] = {
        "rapo/word_problems": {},
        "rapo/questions": {"dataset": str(rows)},
        "rapo/agent": {"agent": "own_agents:never_asks", "dataset": str(rows), "protocol": {"format": "native"}},
        "rapo/reasoning_gym": {"task": "chain_sum"},
        "rapo/gem": {"id": "game:Game2048-v0-easy"},
        "rapo/skyrl_gym": {"id": "gsm8k", "dataset": str(chats)},
        "rapo/openenv": {"observation_field": "text"},
    }
    assert {name for name in gymnasium.registry if name.startswith("rapo/")} == set(configs)
    packages = {"reasoning_gym": "reasoning_gym", "gem": "gem", "skyrl_gym": "skyrl_gym"}
    for name, package in (packages | {"openenv": "openenv"}).items():
        if importlib.util.find_spec(package) is None:
            del configs[f"rapo/{name}"]
    if "rapo/openenv" in configs:
        configs["rapo/openenv"]["url"] = request.getfixturevalue("house_url")
    for name, env_config in configs.items():
        env = gymnasium.make(name, disable_env_checker=True, env_config=env_config)
        for space in (env.observation_space, env.action_space):
            assert isinstance(space, gymnasium.spaces.Text)
        checked(env)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            passive = gymnasium.make(name, env_config=env_config)  # with gymnasium's passive checker around it
            passive.reset(seed=1)
            passive.step("<answer>\\boxed{2}</answer>")


def test_gymnasiums_checker_passes_the_game(hunt: Any) -> None:
    checked(hunt.TreasureHunt())
    checked(hunt.TreasureHunt({"hints": False, "max_moves": 1}))


def test_the_game(hunt: Any) -> None:
    game = hunt.TreasureHunt({"max_moves": 5})
    text, _ = game.reset(seed=3)
    assert f"key in the {game.key_room}, chest in the {game.chest_room}" in text
    assert game.step(f"<act>go {game.chest_room}</act>")[:2] == (f"You are in the {game.chest_room}. There is a chest.", 0.0)
    assert game.step("I try. <act>open chest</act>")[0].startswith(f"You cannot. You are in the {game.chest_room}.")
    assert game.step(f"<act>Go {game.key_room}</act>")[:2] == (f"You are in the {game.key_room}. There is a key.", 0.25)
    assert copy.deepcopy(game).step("<act>take key</act>")[:2] == ("You have the key.", 0.25)
    assert game.step("<act>take key</act>")[:2] == ("You have the key.", 0.25)  # the copy took another one
    _, reward, terminated, truncated, info = game.step(f"<act>go {game.chest_room}</act>")
    assert (reward, terminated, truncated, info["end"], info["correct"]) == (0.25, False, True, "tool_limit", False)
    game.reset(seed=3)
    assert game.step("I sit down.")[1:4] == (0.0, True, False)


def test_the_expert_wins_every_training_hunt(hunt: Any) -> None:
    config = RAPOConfig().environment(hunt.TreasureHunt)
    train, test = (config.question_source.questions(split) for split in ("train", "test"))
    assert not {q.seed for q in train} & {q.seed for q in test}
    trajectories = list(config.question_source.expert_trajectories())
    assert len(trajectories) == len(train)
    game = hunt.TreasureHunt()
    for question, trajectory in list(zip(train, trajectories, strict=True))[:200]:
        assert game.reset(seed=question.seed)[0] == trajectory.question.text
        results = [game.step(step.partition("\n<result>")[0]) for step in trajectory.steps]
        assert [step.partition("<result>\n")[2].partition("\n</result>")[0] for step in trajectory.steps] == [
            r[0] for r in results
        ]
        assert sum(r[1] for r in results) == trajectory.reward == 1.0
        assert [r[2] for r in results] == [False, False, False, True]


def roll_out(config: RAPOConfig, script: Callable[[str], str]) -> TrajectoryGroup:
    """Two trajectories of the first training question, by a scripted engine."""
    budgets = {"group_size": 2, "max_response_tokens": 4000, "max_prompt_tokens": 2000}
    loop = scripted_loop(ScriptedEngine(script), config.question_source.env_maker(), **budgets)
    (group,) = loop.run([config.question_source.questions("train")[0]])
    loop.close()
    return group


def winning(so_far: str) -> str:
    """Reads the note."""
    key, _, chest = so_far.split("key in the ")[1].partition(".")[0].partition(", chest in the ")
    moves = [f"go {key}", "take key", f"go {chest}", "open chest"]
    return f"<act>{moves[so_far.count('<result>')]}</act>"


def named(how: str, module: Any) -> Any:
    """The game as the value of ``env``."""
    if how == "class":
        return module.TreasureHunt
    if how == "import path":
        return _named_env("treasure_hunt.TreasureHunt")
    if how == "registered with Tune":
        register_env("hunt", lambda env_config: module.TreasureHunt(env_config))
        return "hunt"
    if "user/TreasureHunt-v0" not in gymnasium.registry:
        entry_point = "treasure_hunt:TreasureHunt"
        gymnasium.register("user/TreasureHunt-v0", entry_point=entry_point, max_episode_steps=50, kwargs={"env_config": None})
    return "user/TreasureHunt-v0"


@pytest.mark.parametrize("how", ["class", "import path", "registered with Tune", "registered with gymnasium"])
def test_in_the_rollout(hunt: Any, how: str) -> None:
    config = RAPOConfig().environment(named(how, hunt), env_config={})
    won = roll_out(config, winning)
    for trajectory in won.trajectories:
        assert (trajectory.reward, trajectory.correct, trajectory.end) == (1.0, True, "answer")
        assert [step.tool for step in trajectory.steps] == ["act"] * 4
        assert "You have the key." in trajectory.text
    lost = roll_out(config, lambda so_far: "<act>sleep</act>")
    assert {(t.reward, t.end, len(t.steps)) for t in lost.trajectories} == {(0.0, "tool_limit", 8)}
