import copy
import dataclasses

import gymnasium
import pytest

import rapo_rllib  # noqa: F401 - registers the environments
from rapo_rllib.envs.base import AnyText, SeedQuestions
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.tools import ToolLimits, ToolResult
from rapo_rllib.types import Question

QUESTION = Question("q", "Tom has 3 apples and buys 5. How many?", "8")
RIGHT = "<answer>\\boxed{8}</answer>"


class Echo:
    name = "echo"
    tag = "echo"
    limits = ToolLimits()

    def run(self, input: str) -> ToolResult:
        return ToolResult(f"{input}!", "odd" if input == "x" else None, 0.5)


class Other(Echo):
    name = tag = "other"


ECHO = f"{__name__}:Echo"


def started(**keys: object) -> ToolEnv:
    env = ToolEnv({"tools": [ECHO], **keys})
    assert env.reset(options={"question": QUESTION}) == (QUESTION.text, {})
    return env


def test_an_episode() -> None:
    env = started()
    assert env.tool_tags == ("echo",)
    assert env.step("<echo> a </echo>") == ("a!", 0.0, False, False, {"tool": "echo", "tool_error": None, "tool_seconds": 0.5})
    assert env.step("<echo>x</echo>")[4]["tool_error"] == "odd"
    observation, reward, terminated, truncated, info = env.step(RIGHT)
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    terms = {"correct": 1.0, "format": 0.0, "bad_format": 0.0, "called_tool": 0.0, "all_tools": 0.0, "tool_error": 0.0}
    assert info == {"correct": True, "format_ok": True, "reward_terms": terms, "predicted": "8"}
    with pytest.raises(gymnasium.error.ResetNeeded, match="after the end"):
        env.step(RIGHT)


def test_nothing_is_held_between_episodes() -> None:
    env = started(max_tool_calls=1, reward={"all_tools": 0.5})
    env.step("<echo>a</echo>")
    env.step(RIGHT)
    env.reset(options={"question": Question("r", "?", "9")})
    assert env.step("<echo>a</echo>")[2:4] == (False, False)
    env.reset(options={"question": QUESTION})
    assert env.step(RIGHT)[1] == 1.0  # the tool was called in another episode


@pytest.mark.parametrize(
    ("text", "correct", "well_formed", "predicted"),
    [
        (RIGHT, True, True, "8"),
        ("<answer>8</answer>", True, False, "8"),
        ("<answer>\\boxed{9}</answer>", False, True, "9"),
        ("\\boxed{8}", False, False, ""),
        ("the answer is 8", False, False, ""),
        ("<echo>8", False, False, ""),
        ("", False, False, ""),
    ],
)
def test_ends(text: str, correct: bool, well_formed: bool, predicted: str) -> None:
    _, reward, terminated, _, info = started(reward={"format": 0.1, "bad_format": -0.5}).step(text)
    assert terminated
    assert (info["correct"], info["format_ok"], info["predicted"]) == (correct, well_formed, predicted)
    assert reward == pytest.approx(float(correct) + (0.1 if well_formed else -0.5))
    assert reward == pytest.approx(sum(info["reward_terms"].values()))


@pytest.mark.parametrize(
    ("text", "boxed", "anything"),
    [
        ("\\boxed{8}", "8", "8"),
        ("<answer>8</answer>", None, "8"),
        ("<think>Is it \\boxed{9}?</think>\nThe answer is **8**. Checked.", None, "8"),
        ("#### 8", None, "8"),
        ("3 + 5 makes $8$ of them.", None, "8"),
        ("So Tom has 3 + 5 = 8 apples now.", None, "8"),
        ("8 apples", None, "8 apples"),
        ("", None, None),
    ],
)
def test_answers_without_tags_are_read_where_the_key_says(text: str, boxed: str | None, anything: str | None) -> None:
    for answers, predicted in (("boxed", boxed), ("any", anything)):
        info = started(read_answer=answers).step(text)[4]
        assert (info["predicted"], info["correct"], info["format_ok"]) == (predicted or "", predicted is not None, False)
        cut = started(read_answer=answers)
        cut.turn_ended = False
        assert cut.step(text)[4]["predicted"] == ("8" if "<answer>" in text else "")
    if "<" in text:  # which the protocol takes out before
        return
    native = started(read_answer="any", tools=[], protocol={"format": "native"})
    assert native.step(text)[4]["predicted"] == (anything or "")


def test_of_words_the_last_line_is_the_answer() -> None:
    env = started(read_answer="any", scorer="auto")
    env.reset(options={"question": Question("q", "Who?", "8 Mile", source="mine/qa")})
    assert env.step("It is about Detroit.\n8 Mile.")[4]["correct"]


def test_without_required_box() -> None:
    assert started(require_boxed=False).step("<answer>8</answer>")[4]["format_ok"]


RELEASED = "<think>Add.</think>"


@pytest.mark.parametrize("reward", ["released_code", {"preset": "released_code"}])
def test_the_reward_of_the_released_code(reward: object) -> None:
    env = started(reward=reward)

    def episode(*steps: str) -> float:
        env.reset(options={"question": Question("q", "?", "New York")})
        return [env.step(step)[1] for step in steps][-1]

    right, half = "<answer>\\boxed{New York}</answer>", "<answer>\\boxed{York}</answer>"
    assert episode(RELEASED + right) == 1.0
    assert episode(RELEASED + half) == pytest.approx(2 / 3)  # token F1
    assert episode(f"{RELEASED}<echo>a</echo>", RELEASED + right) == pytest.approx(1.1)
    assert episode(f"{RELEASED}<echo>a</echo>", RELEASED + half) == pytest.approx(2 / 3 + 0.1)  # the bonus is for any F1
    assert episode(f"{RELEASED}<echo>a</echo>", f"{RELEASED}<answer>\\boxed{{Paris}}</answer>") == 0.0
    assert episode(right) == -1.0  # without a thought
    assert episode(f"{RELEASED}<echo>a</echo>", f"{RELEASED}<answer>New York</answer>") == -1.0
    assert episode(f"{RELEASED}No answer") == -1.0


def test_a_preset_lies_beneath_what_is_given() -> None:
    env = started(reward={"preset": "released_code", "bad_format": -0.5, "format": 0.25}, scorer="math")
    assert env.options.reward.all_tools == 0.1 and env.options.scorer == "math"
    assert env.step("<answer>8</answer>")[1] == -0.5
    assert started(reward={"preset": None}).options == ToolEnv({"tools": [ECHO]}).options


def test_failed_calls_cost() -> None:
    env = started(reward={"tool_error": -0.1}, max_tool_calls=2)
    for call in ("x", "a"):  # the first one fails
        env.step(f"<echo>{call}</echo>")
    _, reward, _, _, info = env.step(RIGHT)
    assert reward == pytest.approx(0.9) and info["reward_terms"]["tool_error"] == -0.1


def test_no_bonus_for_using_all_of_no_tools() -> None:
    assert started(tools=[], reward={"all_tools": 0.1}).step(RIGHT)[1] == 1.0


@pytest.mark.parametrize(("offered", "reward"), [("echo", 0.75), ("other", 0.0)])
def test_tools_that_were_called_are_those_that_the_question_offers(offered: str, reward: float) -> None:
    """A call of a tool that is not offered does not count; of a question that offers one of two tools, that one is all."""
    env = ToolEnv({"tools": [ECHO, f"{__name__}:Other"], "reward": {"correct": 0.0, "called_tool": 0.25, "all_tools": 0.5}})
    env.reset(options={"question": dataclasses.replace(QUESTION, tools=(offered,))})
    env.step("<echo>a</echo>")
    assert env.step(RIGHT)[1] == reward


def test_one_call_too_many() -> None:
    env = started(max_tool_calls=2, reward={"bad_format": -0.2})
    for _ in range(2):
        assert env.step("<echo>a</echo>")[2:4] == (False, False)
    observation, reward, terminated, truncated, info = env.step("<echo>a</echo>")
    assert (observation, reward, terminated, truncated) == ("", -0.2, False, True)
    assert (info["end"], info["correct"], info["format_ok"], info["predicted"]) == ("tool_limit", False, False, "")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_tool_cals": 3}, r"unknown key 'env_config.max_tool_cals': did you mean 'env_config.max_tool_calls'\?"),
        ({"zzz": 3}, "unknown key 'env_config.zzz': valid keys: max_tool_calls"),
        ({"reward": {"corect": 1}}, r"unknown key 'env_config.reward.corect': did you mean 'env_config.reward.correct'\?"),
        ({"reward": 1}, "env_config.reward = 1: must be a mapping of preset, correct"),
        ({"reward": "released"}, "env_config.reward.preset = 'released': must be one of released_code, r1_searcher, or null"),
        ({"reward": {"preset": ["x"]}}, "env_config.reward.preset = .*must be one of released_code"),
        ({"reward": {"all_tools_for": "all"}}, "env_config.reward.all_tools_for = 'all': must be one of 'correct', 'partial'"),
        ({"reward": {"format_check": "x"}}, "env_config.reward.format_check = 'x': must be one of 'final_step', 'whole_text'"),
        ({"reward": {"format": float("nan")}}, "env_config.reward.format = nan: must be a number"),
        ({"reward": {"correct": "x"}}, "env_config.reward.correct = 'x': must be a number"),
        ({"reward": {"strict_format": 1}}, "env_config.reward.strict_format = 1: must be true or false"),
        ({"max_tool_calls": -1}, "env_config.max_tool_calls = -1: must be a whole number"),
        ({"max_tool_calls": 2.5}, "env_config.max_tool_calls = 2.5"),
        ({"scorer": "maths"}, "env_config.scorer = 'maths': must be one of math, qa.*; did you mean 'math'"),
        ({"scorer": 3}, "env_config.scorer = 3: must be a name, or {name: judge"),
        ({"scorer": {"name": "math", "option": {}}}, "unknown key 'env_config.scorer.option': did you mean"),
        ({"scorer": {"name": "auto", "options": {"normal": 1}}}, "did you mean 'env_config.scorer.options.normalization'"),
        ({"scorer": {"name": "math", "options": {"timeout_s": 9}}}, "unknown key 'env_config.scorer.options.timeout_s'"),
        ({"scorer": {"name": "math", "options": 1}}, "env_config.scorer.options = 1: must be a mapping"),
        ({"scorer": {"name": "qa", "options": {"x": 1}}}, "unknown key 'env_config.scorer.options.x'"),
        ({"require_boxed": "no"}, "env_config.require_boxed = 'no'"),
        ({"tools": "python"}, "env_config.tools = 'python': must be a list"),
        ({"tools": ["pythn"]}, r"unknown tool 'pythn': did you mean 'python'\?"),
        ({"tools": [{"name": "python", "timeout": 1}]}, r"unknown key 'env_config.tools: timeout'"),
        ({"tools": ["python", "python"]}, "'python' and 'python' are both called by <python>: leave one out"),
        ({"tools": [{"options": {}}]}, "env_config.tools: .*each entry is a name or"),
        ({"tools": [{"name": "python", "options": {"timeout": 1}}]}, "did you mean '.*options.timeout_s'"),
    ],
)
def test_wrong_keys_are_named(keys: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToolEnv(keys)


def test_a_step_follows_a_reset() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="before reset"):
        ToolEnv({}).step("x")


def test_through_gymnasium() -> None:
    env = gymnasium.make("rapo/word_problems", env_config={"steps": [1, 1]}, max_tool_calls=1)
    first, info = env.reset(seed=3)
    assert info == {}
    assert env.reset(seed=3)[0] == first
    assert env.observation_space.contains(first)
    observation, *_ = env.step("<python>'π' + chr(0x4e2d)</python>")
    assert observation == "'π中'"
    assert env.observation_space.contains(observation)
    assert env.action_space.contains(env.action_space.sample())
    env.close()


def test_any_text() -> None:
    space = AnyText(max_length=5)
    assert isinstance(space, gymnasium.spaces.Text)
    assert space.contains("ü中") and space.contains("")
    assert not space.contains("123456") and not space.contains(None) and not space.contains(3)
    assert space == AnyText(5) and space != AnyText(6)


def test_seed_questions() -> None:
    source = SeedQuestions(3, offset=10)
    assert [q.seed for q in source] == [10, 11, 12]
    assert source[-1].id == "seed-12" and source[0].text == ""
    assert [q.seed for q in source[1:]] == [11, 12]
    with pytest.raises(IndexError, match="question 3 of 3"):
        source[3]


def test_a_copy_goes_on_from_the_same_state_and_alone() -> None:
    """What a trajectory that branches needs."""
    env = gymnasium.make("rapo/word_problems", disable_env_checker=True, env_config={"max_tool_calls": 2})
    env.reset(options={"question": Question("q", "What is 1 + 1?", "2")})
    env.step("<python>1 + 1</python>")
    branch = copy.deepcopy(env)
    assert branch.step("<python>2</python>")[0] == "2"
    assert branch.step("<python>3</python>")[4]["end"] == "tool_limit"  # its third call
    observation, _, terminated, truncated, _ = env.step("<python>4</python>")  # the second of this one
    assert (observation, terminated, truncated) == ("4", False, False)
    assert env.step("<answer>\\boxed{2}</answer>")[1] == 1.0
