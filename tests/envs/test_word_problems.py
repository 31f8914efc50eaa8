import re
from dataclasses import replace

import pytest

from rapo_rllib.envs.word_problems.env import WordProblem, WordProblemQuestions, WordProblems, WordProblemsOptions, compositions
from rapo_rllib.envs.word_problems.pieces import THEMES
from rapo_rllib.protocol.steps import parse_step
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.tools.python import PythonTool

PLAIN = WordProblemsOptions(num_train=5000)


def problems(options: WordProblemsOptions, split: str, count: int) -> list[WordProblem]:
    source = WordProblemQuestions(options, split)
    return [source.problem(i) for i in range(count)]


def test_there_are_many_templates_of_every_length() -> None:
    # 70, 273 and 656 when this was written
    assert [len(compositions(n)) >= least for n, least in ((1, 60), (2, 200), (3, 500))] == [True] * 3
    names = [c.name for n in (1, 2, 3) for c in compositions(n)]
    assert len(names) == len(set(names))
    assert all(c.num_steps == n for n in (1, 2, 3) for c in compositions(n))


def test_numbers_of_operations_are_drawn_as_weighted() -> None:
    lengths = [len(p.operations) for p in problems(replace(PLAIN, step_weights=(0.9, 0.08, 0.02)), "train", 500)]
    shares = [lengths.count(n) / 500 for n in (1, 2, 3)]
    assert shares == pytest.approx([0.9, 0.08, 0.02], abs=0.04) and 0 < shares[2] < shares[1]


@pytest.mark.parametrize("weights", [(0.5, 0.5), (1.0, 0.0, 1.0), (1.0, "2", 1.0)])
def test_weights_that_do_not_fit_are_refused(weights: tuple) -> None:
    with pytest.raises(ValueError, match=r"env_config\.step_weights = .*must (be a list|have one weight for each)"):
        WordProblemsOptions(step_weights=weights)


def test_every_slot_of_every_sentence_is_drawn_and_used() -> None:
    for theme in THEMES:
        for piece in (*theme.openings, *theme.events, *theme.endings):
            assert set(re.findall(r"\{([a-dx])\}", piece.text)) == set(piece.numbers), piece
            used = set(re.findall(r"\b[a-dx]\b", " ".join(piece.steps)))
            assert set(piece.numbers) - {"x"} <= used, piece


def test_solutions_are_right_over_2000_instances() -> None:
    for problem in problems(PLAIN, "train", 2000):
        numbers_seen: list[int] = []
        for operation in problem.operations:
            value = eval(operation.code.replace("//", "/"))  # true division: what is shared must come out even
            assert value == operation.value >= 2
            assert operation.value <= 200
            numbers_seen.append(operation.value)
        assert problem.answer == numbers_seen[-1]


def test_every_operand_is_in_the_text_or_an_earlier_result() -> None:
    for problem in problems(PLAIN, "train", 500):
        known = {int(n) for n in re.findall(r"\d+", problem.text)}
        assert set(problem.numbers) == known
        for operation in problem.operations:
            left, _, right = operation.code.split()
            assert {int(left), int(right)} <= known
            known.add(operation.value)


def test_train_and_test_share_no_instance() -> None:
    train = {(p.template, p.numbers) for p in problems(PLAIN, "train", 3000)}
    test = {(p.template, p.numbers) for p in problems(PLAIN, "test", 500)}
    assert len(test) > 400
    assert not train & test
    # nor with another seed, where the same instances are drawn again
    other = [(p.template, p.numbers) for p in problems(WordProblemsOptions(seed=7), "train", 3000)]
    assert set(other) & train
    assert not set(other) & test


def test_access_is_random_and_deterministic() -> None:
    config = {"seed": 3, "num_train": 50, "num_test": 20}
    forwards = list(WordProblems.questions(config, "train"))
    again = WordProblems.questions(config, "train")
    assert [again[i] for i in reversed(range(50))] == forwards[::-1]
    assert again[-1] == forwards[49]
    assert len(WordProblems.questions(config, "test")) == 20
    assert forwards != list(WordProblems.questions({**config, "seed": 4}, "train"))
    assert len({q.id for q in forwards}) == 50


def test_the_first_question_stays_what_it_is() -> None:
    # runs that were compared over months must have been asked the same
    question = WordProblems.questions({}, "test")[0]
    text = (
        "Grace finds 19 blocks at the park on Friday. She buys 18 more blocks at the park. How many blocks does Grace have now?"
    )
    assert (question.id, question.text, question.answer) == ("word-test-0-0", text, "37")


@pytest.mark.parametrize("steps", [(1, 1), (2, 2), (3, 3), (1, 2), (4, 4)])
def test_steps(steps: tuple[int, int]) -> None:
    found = {len(p.operations) for p in problems(WordProblemsOptions(steps=steps), "train", 100)}
    assert found == set(range(steps[0], steps[1] + 1))


def test_numbers_keep_to_their_range() -> None:
    for problem in problems(WordProblemsOptions(max_number=8, steps=(1, 2)), "train", 300):
        above = re.search(r"goal|bike|rest|seats", problem.template.rpartition("+")[2])
        drawn = problem.numbers[:-1] if above else problem.numbers
        assert "+sold" in problem.template or all(2 <= n <= 80 for n in drawn)
        assert problem.answer <= 80


@pytest.mark.process
def test_the_python_tool_answers_what_the_expert_wrote() -> None:
    tool, settings = PythonTool(), ProtocolSettings()
    for expert in WordProblems.expert_trajectories({"num_train": 8, "steps": [2, 3]}):
        *calls, last = expert.steps
        assert len(calls) in (2, 3)
        for step in calls:
            call, _, result = step.partition("\n<result>\n")
            assert tool.run(parse_step(call, settings, ["python"]).tool_input or "").text + "\n</result>\n" == result
        assert last == f"<answer>\\boxed{{{expert.question.answer}}}</answer>"
        assert expert.reward == 1.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"step": [1, 2]}, r"did you mean 'env_config.steps'\?"),
        ({"steps": [0, 2]}, r"env_config.steps = \[0, 2\]: must be \[fewest, most\] in 1..4"),
        ({"steps": [3, 2]}, "env_config.steps"),
        ({"steps": [1, 5]}, "env_config.steps"),
        ({"steps": 2}, "env_config.steps = 2"),
        ({"max_number": 4}, "env_config.max_number = 4: must be a whole number at least 5"),
        ({"num_train": 0}, "env_config.num_train = 0"),
        ({"seed": "x"}, "env_config.seed = 'x'"),
    ],
)
def test_wrong_keys_are_named(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WordProblems.questions(config, "train")
    with pytest.raises(ValueError, match=message):
        WordProblems(config)


def test_a_wrong_split_is_named() -> None:
    with pytest.raises(ValueError, match="split = 'dev': must be one of train, test"):
        WordProblems.questions({}, "dev")


def test_the_smallest_numbers_still_make_problems() -> None:
    for steps in ((1, 1), (3, 3)):
        options = WordProblemsOptions(max_number=5, steps=steps)
        assert len(problems(options, "train", 200)) + len(problems(options, "test", 100)) == 300


@pytest.mark.process
def test_a_call_is_right_if_its_value_is_one_of_the_solution() -> None:
    config = {"steps": [2, 3], "num_train": 50}
    env, source = WordProblems(config), WordProblems.questions(config, "train")
    problem, question = source.problem(7), source[7]
    env.reset(options={"question": question})
    told = {}
    for code in (problem.operations[0].code, problem.operations[-1].code, "1 - 5000"):
        told[code] = env.step(f"<python>{code}</python>")[4]["step_right"]
    assert list(told.values()) == [True, True, False]
    assert "step_right" not in env.step("<answer>1</answer>")[4]
    strangers = (replace(question, id="word-train-3-8"), replace(question, id="gsm8k-1"), replace(question, text="Another?"))
    for stranger in strangers:
        env.reset(options={"question": stranger})
        assert "step_right" not in env.step("<python>1 + 1</python>")[4]
    env.close()


@pytest.mark.parametrize("tool", ["calculator", {"name": "calculator", "limits": {"timeout_s": 2}}])
def test_the_expert_calls_the_calculator_where_there_is_one(tool: object) -> None:
    config = {"tools": [tool], "num_train": 20, "steps": [1, 3], "reward": {"format": 0.5}}
    env = WordProblems(config)
    for expert in WordProblems.expert_trajectories(config):
        env.reset(options={"question": expert.question})
        for step in expert.steps[:-1]:
            call, _, result = step.partition("</calculator>")
            observation, *_, info = env.step(f"{call}</calculator>")
            assert result == f"\n<result>\n{observation}\n</result>\n" and info["step_right"]
        assert env.step(expert.steps[-1])[1] == 1.5
    env.close()
