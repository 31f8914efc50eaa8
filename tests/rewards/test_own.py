import asyncio
import copy
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import own_rewards
import pytest

from rapo_rllib import RAPOConfig
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import EnvError
from rapo_rllib.rewards import Episode, EpisodeStep, Score, check_columns, shared_scorer
from rapo_rllib.rewards.scorers import as_score
from rapo_rllib.rollout.env_calls import EnvPool, reset_env, step_env
from rapo_rllib.tools import ToolLimits, ToolResult
from rapo_rllib.types import Question

QUESTION = Question("q", "3 + 5?", "8")
RIGHT = "<answer>\\boxed{8}</answer>"


class Echo:
    name = tag = "echo"
    limits = ToolLimits()

    def run(self, input: str) -> ToolResult:
        return ToolResult(f"{input}!")


def env_with(scorer: Any, **keys: Any) -> ToolEnv:
    env = ToolEnv({"tools": [f"{__name__}:Echo"], "scorer": scorer, **keys})
    env.reset(options={"question": QUESTION})
    return env


def test_a_number() -> None:
    _, reward, _, _, info = env_with("own_rewards:exact").step(RIGHT)
    assert (reward, info["correct"], info["reward_terms"]["correct"]) == (1.0, True, 1.0)
    assert env_with("own_rewards:exact").step("<answer>\\boxed{9}</answer>")[1] == 0.0
    assert env_with("own_rewards:exact").step("no answer")[1] == 0.0  # it was called with None
    assert env_with("own_rewards:numpy_number").step(RIGHT)[1] == 0.5


def test_named_terms_add_up_with_those_of_the_environment() -> None:
    scorer = {"name": "own_rewards:short_and_right", "options": {"limit": 20}}
    _, reward, _, _, info = env_with(scorer, reward={"correct": 2, "format": 0.25}).step(RIGHT)
    assert reward == pytest.approx(2 * 1 - 2 * 0.5 + 0.25) == sum(info["reward_terms"].values())
    assert info["reward_terms"]["length"] == -1.0 and info["correct"]
    assert not env_with(scorer).step("no answer")[4]["correct"]


def test_it_sees_the_whole_episode() -> None:
    env = env_with("own_rewards:seen")
    env.step("<echo>a</echo>")
    _, reward, _, _, info = env.step(RIGHT)
    assert (reward, info["correct"]) == (0.25, True)


def test_an_object_is_made_once_and_shared() -> None:
    scorer = {"name": "own_rewards:Counting", "options": {"worth": 0.75}}
    first, second = env_with(scorer), env_with(scorer)
    branch = copy.deepcopy(first)
    assert [env.step(RIGHT)[1] for env in (first, second, branch)] == [0.75] * 3
    assert own_rewards.Counting.made == 1


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("own_rewrds:exact", "env_config.scorer = 'own_rewrds:exact': cannot import it: ModuleNotFoundError"),
        ("own_rewards:exct", "env_config.scorer = 'own_rewards:exct': cannot import it: AttributeError"),
        ("own_rewards:", "cannot import it"),
        (":exact", "cannot import it"),
        ("own_rewards:not_callable", "a int cannot be called"),
        ("own_rewards:two_arguments", "cannot be called with .answer, question, episode.: too many positional"),
        ({"name": "own_rewards:exact", "options": {"limit": 3}}, "cannot be called with .*limit=.*: got an unexpected keyword"),
        ("own_rewards:Counting", "missing a required argument: 'worth'"),
        ("own_rewards.exact", "must be one of math, .*, or package.module:function"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_before_anything_starts(scorer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToolEnv({"scorer": scorer})
    config = RAPOConfig().environment("rapo/word_problems", env_config={"scorer": scorer})

    with pytest.raises(ValueError, match=message):
        config.question_source.env_maker()()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "my own mistake"),
        ("returns_nan", "returned 'value': nan, which is no finite number"),
        ("returns_text", "returned 'value': '1', which is no finite number"),
        ("takes_a_taken_name", "returned a term 'format', which env_config.reward adds"),
    ],
)
def test_what_it_raises_and_what_is_no_reward_are_errors_of_the_environment(name: str, message: str) -> None:
    session = Session()
    pool = EnvPool(lambda: ToolEnv({"tools": [], "scorer": f"own_rewards:{name}"}), "answer")
    reset_env(session, pool)
    with pytest.raises(EnvError, match=f"env.step failed: .*{message}"):
        step_env(session, RIGHT)


class Session:
    """What the calls into environments use of a session."""

    def __init__(self) -> None:
        self.question, self.env, self.stop, self.env_started = QUESTION, None, (), None
        self.env_failed, self.plan = False, SimpleNamespace(env_steps=None)


@pytest.mark.parametrize(
    ("found", "score"),
    [
        (1, Score(1.0, True)),
        (True, Score(1.0, True)),
        (0.99, Score(0.99, False)),
        (-3, Score(-3.0, False)),
        ({}, Score(0.0, False)),
        ({"a": 0.5, "b": 0.5}, Score(1.0, True, {"a": 0.5, "b": 0.5})),
        ({"correct": 1, "b": -0.5}, Score(0.5, True, {"correct": 1.0, "b": -0.5})),
        ({"correct": 0, "b": 2}, Score(2.0, False, {"correct": 0.0, "b": 2.0})),
        (Score(0.25, True), Score(0.25, True)),
        (Score(9.0, False, {"a": 1.0, "b": 2.0}), Score(3.0, False, {"a": 1.0, "b": 2.0})),  # named terms decide
    ],
)
def test_what_may_be_returned(found: Any, score: Score) -> None:
    assert as_score(found, "m:f") == score


@pytest.mark.parametrize(
    "found", [None, "x", [1], 1j, float("inf"), {"a": None}, {1: 1.0}, {"a": float("nan")}, Score(float("nan"), True)]
)
def test_what_may_not(found: Any) -> None:
    with pytest.raises(ValueError, match=r"m:f returned .* no finite number"):
        as_score(found, "m:f")


def test_the_example_of_the_page_about_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "rewards.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    env = env_with({"name": "my_rewards:right_and_brief", "options": {"max_calls": 0}})
    assert env.step(RIGHT)[4]["reward_terms"]["brief"] == 0.0
    env.reset(options={"question": QUESTION})
    env.step("<echo>a</echo>")
    _, reward, _, _, info = env.step(RIGHT)
    assert (reward, info["correct"], info["reward_terms"]["brief"]) == (pytest.approx(0.8), True, -0.2)


def lengths(completions: list[Any], unit: int = 10, **columns: Any) -> list[float | None]:
    return [len(said) / unit if columns["counted"][0] else None for said in completions]


async def waits(prompts: list[Any], completions: list[Any]) -> list[float]:
    return [float(prompts[0] == "How long?" and completions[0] == "x" * 20)]


WAITING = asyncio.Semaphore(1)  # belongs to the first loop in which a call waits for it


async def waits_in_turn(completions: list[Any], *more: Any) -> list[float]:
    async with WAITING:
        await asyncio.sleep(0.01)
        return [float(completions[0] == "x" * 20)]


def format(completions: list[Any]) -> list[float]:
    return [1.0]


def needs(completions: list[Any], solution: list[str]) -> list[float]:
    return [1.0]


class Needs:
    """The same as a class, whose options are its constructor's."""

    def __init__(self, solution: str = "") -> None:
        pass

    def __call__(self, completions: list[Any], solution: list[str]) -> list[float]:
        return [1.0]


@pytest.mark.parametrize("entry", [needs, {"name": Needs, "options": {"solution": "x"}}, ["math", f"{__name__}:needs"]])
def test_a_column_that_a_data_set_lacks_is_known_before_anything_starts(entry: Any) -> None:
    there = Question("q", "How long?", "8", columns={"solution": "8"})
    check_columns(entry, [there])
    with pytest.raises(
        ValueError, match=r"eeds needs a column 'solution'; those of question r are: none; correct the parameter"
    ):
        check_columns(entry, [there, Question("r", "How long?", "8")])
    check_columns(
        [{"name": needs, "options": {"solution": "x"}}, "verifier", lengths, verls, of_steps], [Question("r", "?", "8")]
    )


def two(completions: list[Any]) -> list[float]:
    return [1.0, 2.0]


def an_array(completions: list[Any]) -> Any:
    return np.array(1.0)


def verls_pair(solution_str: str) -> Any:
    return 1.0, "right"


def verls_text(solution_str: str) -> Any:
    return "1.0"


def of_steps(answer: str | None, question: Question, episode: Episode) -> Score:
    return Score(1.0, True, steps=(1.0, 2.0))


def verls(data_source: str, solution_str: str, ground_truth: str, scale: float = 1.0) -> float:
    return scale * float(data_source == "sums" and solution_str.endswith(ground_truth))


def borrowed_score(entry: Any, **columns: Any) -> Any:
    asked = Question("q", "How long?", "8", source="sums", columns={"prompt": "How long?", "counted": True, **columns})
    return shared_scorer(entry)(None, asked, Episode((EpisodeStep("x" * 20),)))


def test_functions_of_trl_and_verl_are_called_as_they_are() -> None:
    """Texts where the prompt is one, columns as lists, options, coroutines; None counts as nothing."""
    assert borrowed_score(lengths).value == 2.0
    assert borrowed_score({"name": f"{__name__}:lengths", "options": {"unit": 40}}).value == 0.5
    assert borrowed_score(lengths, counted=False).value == 0.0
    assert borrowed_score(waits).correct
    assert borrowed_score({"name": verls, "options": {"scale": 0.5}}, reward_model={"ground_truth": "x"}).value == 0.5
    assert borrowed_score(verls).value == 0.0, "the accepted answer is 8"
    with ThreadPoolExecutor(4) as pool:
        assert all(score.correct for score in pool.map(borrowed_score, [waits_in_turn] * 8))
    assert borrowed_score(waits, completions="a row's own", prompts="too").correct, "it judges what the policy wrote"
    found = borrowed_score([waits, {"name": lengths, "weight": -0.25}, "qa_em"])
    assert (found.terms, found.correct) == ({"waits": 1.0, "lengths": -0.5, "qa_em": 0.0}, True)
    assert borrowed_score([waits, {"name": of_steps, "weight": 0.5}]).steps == [0.5, 1.0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (needs, r"needs needs a column 'solution'; those of question q are: prompt, counted"),
        (two, r"two returned \[1.0, 2.0\] for one completion: must return a list of one number"),
        (an_array, r"an_array returned array\(1.\) for one completion: must return a list of one number"),
        (verls_pair, r"verls_pair returned \(1.0, 'right'\): must be a number, or have a 'score'"),
        (verls_text, r"verls_text returned '1.0': must be a number"),
        ([waits, format], "scorer = 'format': is a term that env_config.reward adds"),
        ({"name": two, "options": {"unit": 3}}, r"unknown key 'env_config.scorer.options.unit'"),
        ([waits, waits], "scorer = 'waits': is there twice"),
        ([{"name": waits, "weight": "x"}], "scorer: weight of waits = 'x': must be a finite number"),
        ([], r"scorer = \[\]: must be a name"),
        ([waits, "maths"], "did you mean 'math'"),
    ],
)
def test_what_is_wrong_with_a_borrowed_function_is_named(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        borrowed_score(entry)
