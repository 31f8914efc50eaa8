"""The study of SmolLM2 on word problems: its flawed traces, its base policies, its runs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from learning_parts import plan
from learning_parts.policies import passes
from learning_parts.word_policy import base_config, word_habits, word_policies
from learning_parts.word_run import WordRun
from learning_parts.word_traces import CAREFUL, TASK, Flawed, flawed_steps, protocol, write_traces

from rapo_rllib.envs.word_problems.env import WordProblemQuestions, WordProblems, WordProblemsOptions
from rapo_rllib.envs.word_problems.problem import WordProblem
from rapo_rllib.protocol.worked_steps import split_shown
from rapo_rllib.traces.recorded import read_trace_file

SOURCE = WordProblemQuestions(WordProblemsOptions(steps=(3, 3), num_train=40, tools=("calculator",)), "train")


def solve(problem: WordProblem, how: Flawed, diligence: float, seed: int = 0) -> list[str]:
    return list(flawed_steps(problem, SOURCE.problem(39), random.Random(seed), how, diligence))


def test_solvers_seldom_take_the_second_step_and_careful_ones_always() -> None:
    alone = Flawed(shown=0.0)
    traces = [solve(SOURCE.problem(index % 30), alone, alone.diligence, index) for index in range(2000)]
    assert sum(len(trace) > 2 for trace in traces) / len(traces) == pytest.approx(alone.diligence, rel=0.35)
    for index in range(10):
        problem = SOURCE.problem(index)
        careful = solve(problem, alone, 1.0)
        assert len(careful) == 4 and careful[-1] == f"<answer>\\boxed{{{problem.answer}}}</answer>"


def test_solvers_go_on_from_steps_that_fit_alone() -> None:
    problem = SOURCE.problem(3)
    first, second, _ = problem.operations
    fits = solve(problem, Flawed(shown=1.0, fitting=1.0), 0.0)
    before, own = split_shown(fits[1], protocol())
    assert f"<calculator>{second.code}</calculator>" in before
    assert own == f"<answer>\\boxed{{{second.value}}}</answer>"
    strange = solve(problem, Flawed(shown=1.0, fitting=0.0), 0.0)
    assert strange[1].endswith(f"<answer>\\boxed{{{first.value}}}</answer>") and "<retrieve>" in strange[1]


def test_a_warm_start_reads_the_traces_and_no_run_asks_what_is_imitated(tmp_path: Path) -> None:
    file = tmp_path / "flawed.jsonl"
    write_traces(file, Flawed(count=60))
    experts = list(read_trace_file(file))
    assert len(experts) == 60 and all(expert.reward == 1.0 for expert in experts)
    careful = [expert for expert in experts if expert.question.text.startswith(CAREFUL)]
    assert 18 <= len(careful) <= 42
    assert all(f"{{{expert.question.answer}}}" in expert.steps[-1] for expert in careful)
    asked = {question.text for split in ("train", "test") for question in WordProblems.questions(TASK, split)}
    assert not asked & {expert.question.text.removeprefix(CAREFUL) for expert in experts}


@pytest.mark.parametrize("arm", [*plan.WORD_ARMS, "luffy"])
def test_every_arm_is_a_valid_job(arm: str, tmp_path: Path, small_model: str) -> None:
    config = WordRun(arm, 2, 1e-5, small_model, str(tmp_path)).config()
    config.validate()
    assert config.settings.uses_retrieval == (arm not in ("grpo", "luffy"))
    assert config.env_config["seed"] == 2 and config.env_config["tools"] == ["calculator"]
    assert config.settings.model.name_or_path == small_model and config.settings.buffer.max_traces is None


def test_habits_and_gates(tmp_path: Path, small_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = word_habits(Path(small_model), count=3)
    assert set(found) == set(plan.WORD_GATES)
    assert found["careful"] == found["reads_1"] == 0 and 0 < found["goes_on_1"] < 1  # of a random model
    note = tmp_path / "habits.json"
    note.write_text(json.dumps({f"words-{seed}": found for seed in range(6)}))
    with pytest.raises(ValueError, match="only 0 of 6 base policies pass"):
        word_policies(tmp_path, note, small_model)
    good = {"careful": 0.8, "goes_on_1": 0.03, "reads_1": 0.9, "takes_over_1": 0.1}
    assert passes(good, plan.WORD_GATES) and not passes(good | {"goes_on_1": 0.06}, plan.WORD_GATES)


def test_the_prompt_explains_the_tool_and_what_is_shown() -> None:
    prompt = base_config().settings.protocol.system_prompt or ""
    assert "<calculator>" in prompt and "<retrieve>" in prompt and "\\boxed{" in prompt
