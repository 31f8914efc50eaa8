"""``rapo/gem`` over the real package: games by seed, rewards per step, in the text protocol and in a model's own format."""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_templates import ScriptedTurns, tokenizer_of
from gymnasium.error import ResetNeeded
from scripted import ScriptedEngine, env_loop

from rapo_rllib import RAPOConfig
from rapo_rllib.types import Question, TrajectoryGroup

pytest.importorskip("gem", reason="pip install --no-deps gem-llm")

from rapo_rllib.envs.external.gem_env import Gem

GUESS = {"id": "game:GuessTheNumber-v0-easy", "action_tag": "act"}
MASTERMIND = {"id": "game:Mastermind-v0-easy", "action_tag": "act"}


def begun(config: dict[str, Any], seed: int) -> Gem:
    env = Gem(config)
    env.reset(options={"question": Question(f"seed-{seed}", "", seed=seed)})
    return env


def number_of(seed: int) -> int:
    """The number that gem's own environment draws with ``seed``."""
    import gem

    state = random.getstate()
    env = gem.make(GUESS["id"])
    env.reset(seed=seed)
    random.setstate(state)
    number: int = env.game_number
    return number


def test_a_game_is_played_to_its_end() -> None:
    env = Gem(GUESS)
    rules, _ = env.reset(options={"question": Question("seed-3", "", seed=3)})
    assert rules.startswith("You are playing Guess The Number.") and rules.endswith("Enter your next guess.")
    assert env.tool_tags == ("act",) and env.tool_schemas is None
    number = number_of(3)
    wrong = 1 if number != 1 else 2
    text, reward, terminated, truncated, info = env.step(f"I try. <act>{wrong}</act>")
    assert f"you guessed {wrong}, and the target number is" in text and text.endswith("Enter your next guess.")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"tool": "act", "tool_error": None, "tool_seconds": 0.0}
    text, reward, terminated, _, info = env.step(f"<act>{number}</act>")
    assert text.startswith("Congratulations!") and (reward, terminated, info["correct"]) == (1.0, True, True)
    with pytest.raises(ResetNeeded):
        env.step("<act>1</act>")


def test_a_step_without_the_tag_is_the_action() -> None:
    env = begun(GUESS, 3)
    assert env.step(f"It is \\boxed{{{number_of(3)}}}")[1] == 1.0
    env = begun(GUESS, 3)
    text, reward, terminated, _, info = env.step("I do not know.")
    assert "did not provide a valid guess" in text and (reward, terminated, info["correct"]) == (-0.1, True, False)


def mastermind(so_far: str, form: str) -> str:
    """A code of which half is right, and then the right one."""
    first, second = map(int, begun(MASTERMIND, 5)._env.game_code)
    other = next(digit for digit in range(1, 7) if digit not in (first, second))
    return form.format(f"{first} {second if 'At turn 1' in so_far else other}")


def test_episodes_of_a_seed_are_alike_whoever_plays_between() -> None:
    """gem draws from the generators of the process: 2048's tiles must be those of the episode, and ours must stay."""
    config = {"id": "game:Game2048-v0-easy", "action_tag": "act"}
    moves = ["left", "up", "left", "down", "right", "up"]
    alone = begun(config, 7)
    seen = [alone.step(f"<act>{move}</act>")[0] for move in moves]
    one, other = begun(config, 7), begun(config, 8)
    random.seed(1)
    drawn = random.Random(1).random()
    again = []
    for move in moves:
        again.append(one.step(f"<act>{move}</act>")[0])
        other.step("<act>left</act>")
    assert again == seen
    assert random.random() == drawn


def rolled_out(config: dict[str, Any], engine: Any, tokenizer: Any = None, **rollout: Any) -> TrajectoryGroup:
    settings = {**config, "protocol": {"format": "native" if tokenizer else "tags"}}
    loop = env_loop(lambda: Gem(settings), engine, tokenizer, settings["protocol"]["format"], group_size=2, **rollout)
    (group,) = loop.run([Gem.questions(settings, "train")[5]])
    loop.close()
    return group


def test_step_rewards_are_kept_in_a_rollout() -> None:
    engine = ScriptedEngine(lambda so_far: mastermind(so_far, "<act>{}</act>"))
    group = rolled_out(MASTERMIND, engine)
    for trajectory in group.trajectories:
        assert trajectory.step_rewards == [0.5, 0.5] and trajectory.correct
        assert [step.tool for step in trajectory.steps] == ["act", "act"]
    assert group.rewards == [1.0, 1.0]


def test_a_native_rollout_records_moves_in_tags(smollm2: Path) -> None:
    tokenizer = tokenizer_of("qwen25", smollm2)
    engine = ScriptedTurns(tokenizer, lambda so_far: mastermind(so_far, '{{"name": "act", "arguments": {{"action": "{}"}}}}'))
    group = rolled_out(MASTERMIND, engine, tokenizer)
    for trajectory in group.trajectories:
        assert trajectory.step_rewards == [0.5, 0.5]
        assert all(step.as_text.startswith("<act>") and step.as_text.endswith("</act>") for step in trajectory.steps)
    engine = ScriptedTurns(tokenizer, lambda so_far: mastermind(so_far, "\\boxed{{{}}}"))
    group = rolled_out({"id": MASTERMIND["id"]}, engine, tokenizer)
    for trajectory in group.trajectories:
        assert trajectory.step_rewards == [0.5, 0.5]
        assert [step.as_text for step in trajectory.steps] == [step.text for step in trajectory.steps], "a move is no answer"


def test_an_episode_that_a_budget_ends_is_wrong() -> None:
    engine = ScriptedEngine(lambda so_far: mastermind("", "<act>{}</act>"))
    group = rolled_out(MASTERMIND, engine, max_steps=2)
    assert {(t.end, t.reward, t.correct) for t in group.trajectories} == {("length", 0.5, False)}


def test_the_job_hands_its_format_on_and_splits_do_not_meet() -> None:
    config = RAPOConfig().environment("rapo/gem", env_config=GUESS).training(protocol={"format": "native"})
    source = config.question_source
    assert source.options["protocol"].format == "native"
    train, test = source.questions("train"), source.questions("test")
    assert (len(train), len(test)) == (10_000, 500)
    assert {q.seed for q in train}.isdisjoint({q.seed for q in test})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "env_config.id = '': gem has none of this name; valid keys: "),
        ({"id": "game:Mastermind-v0-eazy"}, "did you mean 'game:Mastermind-v0-easy'"),
        ({**GUESS, "kwargs": {"min_number": "a"}}, "env_config.id = 'game:GuessTheNumber-v0-easy': gem cannot make it with"),
        ({**GUESS, "action_tag": "answer"}, "action_tag = 'answer': stands for something else in the text protocol"),
        ({**GUESS, "num_trian": 3}, "unknown key 'env_config.num_trian': did you mean 'env_config.num_train'"),
    ],
)
def test_bad_keys(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gem(given)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from rapo_rllib.envs.external import gem_env

    monkeypatch.setitem(sys.modules, "gem", None)
    gem_env._gem.cache_clear()
    with pytest.raises(ValueError, match=r"env = 'rapo/gem' needs the package gem-llm: pip install 'rapo_rllib\[gem\]'"):
        Gem(GUESS)


def test_importing_gem_leaves_the_log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from rapo_rllib.envs.external import gem_env

    for name in [name for name in sys.modules if name == "gem" or name.startswith("gem.")]:
        monkeypatch.delitem(sys.modules, name)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    before = root.level
    gem_env._gem.cache_clear()
    Gem(GUESS)
    assert root.handlers == [] and root.level == before
    gem_env._gem.cache_clear()
