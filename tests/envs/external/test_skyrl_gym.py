"""``rapo/skyrl_gym`` over the real package: rows in SkyRL's form, turns with rewards, tools of the environment's own."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedEngine, env_loop

pytest.importorskip("skyrl_gym", reason="pip install 'rapo_rllib[skyrl-gym]'")

from rapo_rllib.envs.external.skyrl_gym_env import SkyRLGym


def row(question: str, answer: str, **more: Any) -> dict[str, Any]:
    prompt = [{"role": "system", "content": "Do sums."}, {"role": "user", "content": question}]
    spec = {"method": "rule", "ground_truth": answer}
    return {"prompt": prompt, "env_class": "gsm8k_multi_turn", "reward_spec": spec, "extra_info": {"max_turns": 3}, **more}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("\n".join(json.dumps(row(f"What is {n} + 1?", str(n + 1))) for n in range(3)))
    return path


def test_rows_become_questions(rows: Path) -> None:
    train = SkyRLGym.questions({"dataset": str(rows), "limit_train": 2}, "train")
    assert [(q.id, q.text, q.answer) for q in train] == [("sums-1", "What is 0 + 1?", "1"), ("sums-2", "What is 1 + 1?", "2")]
    assert train[0].turns == (("system", "Do sums."),)
    test = SkyRLGym.questions({"dataset": str(rows), "test_dataset": str(rows)}, "test")
    assert len(test) == 3
    with pytest.raises(ValueError, match=r"test_dataset = None: .*one file, so it has no test split"):
        SkyRLGym.questions({"dataset": str(rows)}, "test")


def test_turns_have_rewards_and_the_last_is_right(rows: Path) -> None:
    config = {"dataset": str(rows)}
    env = SkyRLGym(config)
    text, _ = env.reset(options={"question": SkyRLGym.questions(config, "train")[1]})
    assert text == "What is 1 + 1?"
    told, reward, terminated, _, _ = env.step("I think. #### 3")
    assert told.startswith("Please provide your step-by-step reasoning") and reward == pytest.approx(0.2 / 3) and not terminated
    assert env.step("Nothing to say.")[1:3] == (0.0, False)
    told, reward, terminated, _, info = env.step("#### 2")
    assert (told, reward, terminated, info["correct"]) == ("", 1.0, True, True)
    env.close()


def test_in_a_rollout_each_step_keeps_its_reward(rows: Path) -> None:
    config = {"dataset": str(rows)}
    engine = ScriptedEngine(lambda so_far: "#### 2" if "step-by-step" in so_far else "#### 5")
    loop = env_loop(lambda: SkyRLGym(config), engine, group_size=2)
    (group,) = loop.run([SkyRLGym.questions(config, "train")[1]])
    loop.close()
    for trajectory in group.trajectories:
        assert trajectory.step_rewards == pytest.approx([0.2 / 3, 1.0])
        assert trajectory.correct and trajectory.reward == pytest.approx(1 + 0.2 / 3)


def test_an_environment_with_a_tool_of_its_own(tmp_path: Path) -> None:
    """text2sql runs queries on a data base; steps end at the query's closing tag."""
    folder = tmp_path / "spider/database/shop"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.sqlite") as made:
        made.execute("create table goods (name text, price integer)")
        made.executemany("insert into goods values (?, ?)", [("pen", 2), ("book", 9)])
    gold = "select name from goods where price > 5"
    rows = tmp_path / "queries.jsonl"
    spec = {"ground_truth": gold}
    rows.write_text(
        json.dumps({"prompt": "Which goods cost more than 5?", "db_id": "shop", "data": "spider", "reward_spec": spec})
    )
    config = {"id": "text2sql", "dataset": str(rows), "settings": {"db_path": str(tmp_path)}, "stop_tags": ["sql", "solution"]}
    env = SkyRLGym(config)
    assert env.tool_tags == ("sql", "solution")
    (question,) = SkyRLGym.questions(config, "train")
    env.reset(options={"question": question})
    told, reward, terminated, _, info = env.step("<think>look</think><sql>select * from goods</sql>")
    assert "book" in told and (reward, terminated) == (0.0, False)
    assert info["tool"] and info["tool_error"] is None
    _, _, terminated, _, info = env.step(f"<think>done</think><solution>{gold}</solution>")
    assert terminated and info["correct"]
    env.close()


@pytest.mark.parametrize(
    ("rows", "config", "message"),
    [
        (
            [row("a", "1")],
            {"id": "gsm9k"},
            "env_config.id = 'gsm9k': skyrl-gym has none of this name; did you mean 'gsm8k'",
        ),
        ([row("a", "1", env_class="gms8k")], {}, "row 1: env_class = 'gms8k': skyrl-gym has none of this name"),
        ([{"prompt": "a", "reward_spec": {}}], {}, "env_config.id = None: .*row 1 has no 'env_class'"),
        (
            [{"prompt": "a", "env_class": "gsm8k"}],
            {},
            "row 1: skyrl-gym cannot make 'gsm8k' of it: .*reward_spec field is required",
        ),
        ([{"prompt": 3}], {}, "row 1: prompt: must be a text or a list of turns, got 3"),
        ([row("a", "1"), {"prompt": [{"role": "assistant", "content": "x"}]}], {}, "row 2: prompt: holds no question"),
        ([row("a", "1")], {"dataset": ""}, "env_config.dataset = '': name a data file"),
    ],
)
def test_bad_rows_and_keys(tmp_path: Path, rows: list[Any], config: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=message):
        SkyRLGym.questions({"dataset": str(path), **config}, "train")


def test_a_question_of_another_data_set_is_refused(rows: Path) -> None:
    from rapo_rllib.types import Question

    with pytest.raises(ValueError, match=r"question 'x' is none of env_config.dataset"):
        SkyRLGym({"dataset": str(rows)}).reset(options={"question": Question("x", "What?", "1")})


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, rows: Path) -> None:
    monkeypatch.setitem(sys.modules, "skyrl_gym", None)
    with pytest.raises(ValueError, match=r"needs the package skyrl-gym: pip install 'rapo_rllib\[skyrl-gym\]'"):
        SkyRLGym({"dataset": str(rows)})
