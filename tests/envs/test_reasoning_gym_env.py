"""Tasks of reasoning-gym as an environment: the real package, all of its tasks."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rapo_rllib.config.question_source import is_tool_env
from rapo_rllib.envs.options import read_options
from rapo_rllib.envs.reasoning_gym_env import (
    CALCULATED,
    EVALUATED,
    ReasoningGym,
    ReasoningGymOptions,
    may_be_verified,
    solution,
    split_of,
    verifier,
)
from rapo_rllib.rewards import Episode, Score
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question

reasoning_gym = pytest.importorskip("reasoning_gym", reason="pip install 'rapo_rllib[reasoning-gym]'")

SUMS = {"task": "chain_sum", "task_config": {"max_terms": 3, "max_digits": 2}, "num_train": 40, "num_test": 10}
WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}  # the verifier alone knows
TRUSTED = {"number_sorting", "bitwise_arithmetic", "basic_arithmetic", "gsm_symbolic", "codeio"}  # evaluate texts of their own


def verified(task: str, answer: str, question: Question) -> Score:
    return verifier(read_options(ReasoningGymOptions, {"task": task}))(answer, question, Episode(()))


def test_an_episode_ends_with_the_verifiers_score() -> None:
    env = gymnasium.make("rapo/reasoning_gym", env_config=SUMS).unwrapped
    question = ReasoningGym.questions(SUMS, "train")[3]
    for answer, reward in ((question.answer, 1.0), ("no number", 0.0)):
        text, _ = env.reset(options={"question": question})
        assert text == question.text
        _, found, terminated, _, info = env.step(f"<answer>{answer}</answer>")
        assert terminated and info["correct"] == (reward == 1.0)
        assert info["reward_terms"]["correct"] == reward <= found
    assert is_tool_env("rapo/reasoning_gym") and copy.deepcopy(env) is not None


def test_questions_depend_on_seed_and_split_alone_and_no_split_leaks() -> None:
    train, test = (ReasoningGym.questions(SUMS, split) for split in ("train", "test"))
    assert [question.text for question in train] == [question.text for question in ReasoningGym.questions(SUMS, "train")]
    other = ReasoningGym.questions({**SUMS, "seed": 1}, "train")
    assert [question.text for question in train] != [question.text for question in other]
    assert {split_of(question.text) for question in [*train, *other]} == {"train"}
    assert {split_of(question.text) for question in test} == {"test"}
    assert len(train) == 40 and len({question.id for question in [*train, *test]}) == 50


def test_every_task_takes_its_own_answer_and_no_nonsense() -> None:
    for task in sorted(set(reasoning_gym.factory.DATASETS) - {"composite", "arc_agi", "rearc"}):
        question = ReasoningGym.questions({"task": task}, "train")[0]
        assert task in WITHOUT_ANSWER or verified(task, question.answer, question) == Score(1.0, True), task
        assert task == "game_of_life_halting" or not verified(task, "no such thing", question).correct


@pytest.mark.parametrize("task", sorted(EVALUATED | CALCULATED))
def test_no_answer_is_run(task: str, tmp_path: Path) -> None:
    mark = tmp_path / "was_here"
    attack = f"[__import__('pathlib').Path({str(mark)!r}).touch()]"
    question = ReasoningGym.questions({"task": task}, "train")[0]
    assert not may_be_verified(task, attack)
    assert verified(task, attack, question) == Score(0.0, False)
    assert not mark.exists()


def test_the_verifiers_do_run_answers_that_are_let_through(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    mark = tmp_path / "was_here"
    data = reasoning_gym.create_dataset("n_queens", seed=0, size=1)
    data.score_answer(f"[__import__('pathlib').Path({str(mark)!r}).touch()]", data[0])
    assert mark.exists()


def test_no_other_verifier_evaluates() -> None:
    folder = Path(reasoning_gym.__file__).parent
    found = set()
    for file in folder.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        if re.search(r"(?<![\w.])(eval|exec|sympify|S)\(|parse_expr\(|yaml\.load\(|pickle\.load", source):
            named = re.findall(r'DATASET_NAME = "(\w+)"', source) or [file.parent.name]
            found |= set(named)
    assert found - TRUSTED - {"propositional_logic"} == EVALUATED | CALCULATED  # whose parse_expr is its own parser


def test_what_the_verifier_cannot_take_is_wrong_and_counted() -> None:
    question = ReasoningGym.questions({"task": "prime_factorization"}, "train")[0]
    assert verified("prime_factorization", "none", question) == Score(0.0, False, failure="verifier/ValueError")
    assert verified("prime_factorization", "", question).value < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"task": "chain_sums"},
            "reasoning-gym has none of this name; did you mean 'chain_sum'",
        ),
        ({"task_config": {"min_term": 2}}, r"env_config\.task_config = .*: chain_sum refuses it: .*min_term"),
        ({"task_config": {"min_terms": 9, "max_terms": 2}}, r"env_config\.task_config = .*: chain_sum refuses it"),
        ({"task_config": {"seed": 3}}, "leave seed out: see seed, num_train and num_test"),
        (
            {
                "task_config": {"max_terms": 2, "max_digits": 1, "operators": ["+"], "allow_negation": False, "min_digits": 1},
                "scorer": "no",
            },
            "scorer",
        ),
    ],
)
def test_bad_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_options(ReasoningGymOptions, {**SUMS, **changes})


def test_another_scorer() -> None:
    env = ReasoningGym({**SUMS, "scorer": "math"})
    question = ReasoningGym.questions(SUMS, "test")[0]
    env.reset(options={"question": question})
    assert env.step(f"<answer>{question.answer}.0</answer>")[4]["correct"]


def test_without_the_package_a_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"needs the package reasoning-gym: pip install 'rapo_rllib\[reasoning-gym\]'"):
        read_options(ReasoningGymOptions, SUMS)


@pytest.mark.parametrize("task", ["chain_sum", "decimal_chain_sum"])
def test_solutions_with_the_calculator_are_right(task: str) -> None:
    config = {"task": task, "num_train": 30, "tools": ["calculator"], "max_tool_calls": 6}
    env = ReasoningGym(config)
    solutions = list(ReasoningGym.expert_trajectories(config))
    assert len(solutions) == 30
    for one in solutions:
        env.reset(options={"question": one.question})
        *calls, answer = one.steps
        for step in calls:
            call, _, told = step.partition("\n<result>\n")
            assert f"{env.step(call)[0]}\n</result>\n" == told
        _, reward, terminated, _, info = env.step(answer)
        assert (reward, terminated, info["correct"]) == (1.0, True, True)


def test_a_question_whose_answer_is_another_has_no_solution() -> None:
    text = "State the final answer to the following arithmetic problem: 66 + 54 - 18 ="
    settings = ProtocolSettings()
    solved = solution(Question("q", text, "102"), settings)
    assert solved is not None and solved.steps[1] == "<calculator>120 - 18</calculator>\n<result>\n102\n</result>\n"
    assert solution(Question("q", text, "103"), settings) is None
    assert solution(Question("q", "How many?", "3"), settings) is None


@pytest.mark.parametrize("config", [{"task": "gcd", "tools": ["calculator"]}, SUMS])
def test_other_tasks_bring_no_step_traces(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"env_config.task = .*only chain_sum and decimal_chain_sum bring step traces"):
        ReasoningGym.expert_trajectories(config)
