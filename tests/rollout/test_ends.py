"""How trajectories end, what each end earns, and the token behind an answer; the real tool environment, a scripted engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from scripted import END, ScriptedEngine, scripted_loop

from rapo_rllib.batching.samples import sample_groups
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.objective.advantages import outcome_advantages
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.settings import BranchingSettings, ObjectiveSettings
from rapo_rllib.tools import ToolLimits, ToolResult
from rapo_rllib.types import Question, TokenKind, Trajectory, TrajectoryGroup

TWO = Question("two", "What is 1 + 1?", "2")
RIGHT = "<answer>\\boxed{2}</answer>"
CALL = "<long>20</long>"
FORMATS = {"bad_format": -1.0, "format": 0.25, "tool_error": -0.125}
TERMS = {"correct": 0.0, "format": 0.0, "bad_format": -1.0, "called_tool": 0.0, "all_tools": 0.0, "tool_error": 0.0}


class Long:
    """Says as many words as it is asked for; none is an error."""

    name = "long"
    tag = "long"
    limits = ToolLimits()

    def run(self, input: str) -> ToolResult:
        return ToolResult("so " * int(input), None if int(input) else "nothing")


LONG = f"{__name__}:Long"
MakeLoop = Callable[..., RolloutLoop]


@pytest.fixture
def make_loop() -> Iterator[MakeLoop]:
    loops: list[RolloutLoop] = []

    def make(
        script: str | Callable[[str], str],
        make_env: Callable[[], Any] | None = None,
        env: dict[str, Any] | None = None,
        **settings: Any,
    ) -> RolloutLoop:
        options = {"tools": [LONG], "reward": FORMATS, **(env or {})}
        engine = ScriptedEngine((lambda so_far: script) if isinstance(script, str) else script)
        given = {"group_size": 1, **settings}
        loops.append(scripted_loop(engine, make_env or (lambda: ToolEnv(options)), eos=END, **given))
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()


def only(loop: RolloutLoop, **options: Any) -> Trajectory:
    """The one trajectory of a loop's run."""
    ((trajectory,),) = [group.trajectories for group in loop.run([TWO], **options)]
    return trajectory


@pytest.mark.parametrize(
    ("script", "settings", "end", "reward"),
    [
        (RIGHT, {}, "answer", 1.25),
        ("<answer>3</answer>", {}, "answer", -1.0),
        ("I do not know.", {}, "eos", -1.0),
        ("so " * 200, {}, "length", -1.0),  # the token budget, in the middle of a step
        ("so " * 200, {"max_step_tokens": 20}, "length", -1.0),  # the budget of a step
        ("<long>500</long>", {}, "length", -1.0),  # the result has no room
        (CALL, {"max_response_tokens": 120}, "length", -1.0),  # the second result has none
        (CALL, {"max_steps": 2}, "length", -1.0),
        ("<long>0</long>", {"max_steps": 2}, "length", -1.25),  # its failed calls cost the same as ever
        (CALL, {"max_response_tokens": 4000}, "tool_limit", -1.0),
    ],
    ids=["right", "wrong", "none", "tokens", "tokens of a step", "result", "second result", "steps", "failed calls", "calls"],
)
def test_every_end_is_judged_by_the_environment(
    make_loop: MakeLoop, script: str, settings: dict[str, Any], end: str, reward: float
) -> None:
    trajectory = only(make_loop(script, **settings))
    assert (trajectory.end, trajectory.reward, sum(trajectory.reward_terms.values())) == (end, reward, reward)
    assert trajectory.reward_terms.keys() == TERMS.keys()
    assert (trajectory.correct, trajectory.format_ok) == (script == RIGHT, script == RIGHT)
    assert len(trajectory.token_ids) <= {"max_response_tokens": 400, **settings}["max_response_tokens"]


def test_running_over_pays_no_better_than_a_bad_format(make_loop: MakeLoop) -> None:
    scripts = ["bad", "bad", "bad", "<long>500</long>"]
    rewards = [only(make_loop(script)).reward for script in scripts]
    assert rewards == [-1.0] * 4 and outcome_advantages(rewards, True, 1e-6).tolist() == [0.0] * 4


def test_a_result_without_room_counts_in_the_length_that_is_punished(make_loop: MakeLoop) -> None:
    """|y| is what the response would have been, so that a huge result at the start is no way out of the punishment."""
    trajectory = only(make_loop("<long>500</long>"))
    assert len(trajectory.token_ids) == len("<long>500</long>")
    assert trajectory.unfitting_tokens == len("\n<result>\n" + "so " * 500 + "\n</result>\n")
    objective = ObjectiveSettings(overlong_buffer_share=0.25, max_response_tokens=400)
    _, statistics = sample_groups([TrajectoryGroup(TWO, [trajectory])], objective)
    assert (statistics["overlong_share"], statistics["overlong_punishment"]) == (1.0, -1.0)


class Walk(gymnasium.Env):
    """A user's environment: a point for every step, no end of its own."""

    tool_tags = ("go",)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict]:
        return "Go on.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        return "on", 1.0, False, False, {}


class JudgedWalk(Walk):
    """The same, and it judges where it was left."""

    def truncate(self) -> tuple[float, dict[str, Any]]:
        return -5.0, {"correct": True, "reward_terms": {"lost": -5.0}}


class BrokenWalk(Walk):
    def truncate(self) -> tuple[float, dict[str, Any]]:
        raise OSError("no more")


@pytest.mark.parametrize(
    ("env", "outcome"),
    [
        (Walk, ("length", 3.0, False, False, {})),  # what it has earned so far
        (JudgedWalk, ("length", -2.0, True, False, {"lost": -5.0})),
        (BrokenWalk, ("error", 3.0, False, False, {})),
    ],
)
def test_an_environment_of_ones_own_is_told(make_loop: MakeLoop, env: type, outcome: tuple) -> None:
    trajectory = only(make_loop("<go>on</go>", env, max_steps=3))
    found = (trajectory.end, trajectory.reward, trajectory.correct, trajectory.format_ok, trajectory.reward_terms)
    assert found == outcome
    if env is BrokenWalk:
        assert "env.truncate failed: OSError" in trajectory.error


def test_a_judgement_that_never_comes_costs_its_deadline(make_loop: MakeLoop) -> None:
    released = threading.Event()

    class Stuck(Walk):
        def truncate(self) -> tuple[float, dict[str, Any]]:
            released.wait()
            return 0.0, {}

    loop = make_loop("<go>on</go>", Stuck, max_steps=1, step_timeout_s=0.2)
    trajectory = only(loop)
    released.set()
    assert loop.stats.deadlines == {"truncate": 1}
    assert trajectory.end == "error" and "env.truncate has not returned" in trajectory.error


def test_judging_ends_branches_too(make_loop: MakeLoop) -> None:
    loop = make_loop(CALL, group_size=4, max_steps=2, branching=BranchingSettings(initial=2))
    (group,) = loop.run([TWO])
    assert [(t.end, t.reward) for t in group.trajectories] == [("length", -1.0)] * 4


# ---- the token behind an answer


def ids(text: str) -> list[int]:
    return list(text.encode())


def test_an_answer_ends_with_one_sampled_token_more(make_loop: MakeLoop) -> None:
    trajectory = only(make_loop(RIGHT))
    assert trajectory.token_ids == [*ids(RIGHT), END]
    assert set(trajectory.kinds) == {TokenKind.POLICY} and trajectory.steps[0].stop == len(RIGHT) + 1
    assert trajectory.logprobs == [-0.5] * (len(RIGHT) + 1) and trajectory.entropies == [1.0] * (len(RIGHT) + 1)
    assert (trajectory.end, trajectory.turn_ended) == ("answer", True)
    assert trajectory.text == trajectory.steps[0].text == RIGHT  # EOS is no text
    wrong = replace(trajectory, reward=trajectory.reward - 1)  # something to be compared with
    (group,), _ = sample_groups([TrajectoryGroup(TWO, [trajectory, wrong])], ObjectiveSettings())
    assert group.samples[0].loss_mask.all() and group.samples[0].token_ids[-1] == END


def test_every_request_says_where_a_turn_ends(make_loop: MakeLoop) -> None:
    loop = make_loop(lambda so_far: RIGHT if "<result>" in so_far else CALL)
    trajectory = only(loop)
    assert [(r.final_stop, r.end_ids) for r in loop.engine.requests] == [("</answer>", (END,))] * 2
    assert trajectory.token_ids.count(END) == 1  # none behind the tool call


@pytest.mark.parametrize(
    ("written", "rambles", "turn_ended"),
    [
        (RIGHT, False, True),
        (f"{RIGHT}\n", False, True),  # the tag's last token holds the newline
        (f"{RIGHT}<", False, False),  # ... or what is no end of a turn any more
        (f"{RIGHT} ", True, False),  # another token than EOS
        ("I do not know.", False, True),
    ],
)
def test_whether_the_turn_has_ended(make_loop: MakeLoop, written: str, rambles: bool, turn_ended: bool) -> None:
    loop = make_loop(written, env={"reward": FORMATS})
    loop.engine.rambles = rambles
    trajectory = only(loop)
    assert trajectory.turn_ended == turn_ended
    well_formed = RIGHT in written
    assert trajectory.format_ok == trajectory.correct == well_formed
    assert trajectory.reward_terms["format"] == 0.25 * well_formed
    assert (trajectory.text == written and trajectory.steps[0].text == written[: len(RIGHT)]) or not trajectory.correct


def test_a_budget_that_the_answer_uses_up_has_no_token_more(make_loop: MakeLoop) -> None:
    trajectory = only(make_loop(RIGHT, max_response_tokens=len(RIGHT)))
    assert trajectory.token_ids == ids(RIGHT)
    assert (trajectory.end, trajectory.reward, trajectory.turn_ended) == ("answer", 1.25, False)
    assert only(make_loop(RIGHT, max_response_tokens=len(RIGHT) + 1)).turn_ended


def test_one_environment_after_another_trajectory_knows_how_its_own_turn_ended(make_loop: MakeLoop) -> None:
    """Environments are used again: what was said of the trajectory before must not stay."""
    turns = iter([f"{RIGHT}<", RIGHT])
    loop = make_loop(lambda so_far: next(turns), env={"scorer": f"{__name__}:ends_turn"}, tool_workers=1)
    assert [only(loop).correct, only(loop).correct] == [False, True]


def ends_turn(answer: str | None, question: Question, episode: Any) -> float:
    return float(episode.turn_ended)
