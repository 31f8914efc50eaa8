"""What a model, a tool and an engine can do to a rollout: the loop with the real tool environment and the python sandbox."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import SUPPORT
from scripted import ScriptedEngine, TellingPool, scripted_loop

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import EngineError, RequestError
from rapo_rllib.monitoring.transcripts import write_transcripts
from rapo_rllib.protocol.turns import Call, Turn
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.env_calls import EnvPool, overdue_s
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.tools import ToolLimits, ToolResult
from rapo_rllib.types import Question, TrajectoryGroup

TWO = Question("two", "What is 1 + 1?", "2")
QUOTED = "SyntaxError: unterminated string literal (detected at line 1)"
RIGHT = "<answer>\\boxed{2}</answer>"
DEADLINE_S = 300.0  # of calls that return, however busy the machine is
OTHERS = [Question(f"other-{i}", "Is it 2?", "2") for i in range(2)]


class Waits:
    """A user's tool. ``hang`` blocks until the test ends, ``exit`` ends the thread, ``half`` is no valid Unicode."""

    name = "waiter"
    tag = "wait"
    limits = ToolLimits(timeout_s=600)  # longer than the step's deadline
    released = threading.Event()

    def run(self, input: str) -> ToolResult:
        if input == "hang":
            self.released.wait()
        if input == "exit":
            sys.exit("no more")
        return ToolResult("a\ud800b" if input == "half" else "2")


class Unscored(ToolEnv):
    """Forgets its reward."""

    def step(self, action: str) -> Any:
        return "", None, True, False, {}


class Hangs(ToolEnv):
    """Where it hangs, it says that it has for longer than any deadline: no test waits for one, and the others have time."""

    borrower: Episode
    hung = False

    def hang(self) -> None:
        assert self.borrower.env_started is not None
        self.borrower.env_started -= 2 * DEADLINE_S
        self.hung = True


class NeverStarts(Hangs):
    """Does not return from the reset of one question."""

    def reset(self, **options: Any) -> Any:
        if options["options"]["question"] is TWO:
            self.hang()
            Waits.released.wait()
        return super().reset(**options)


class NeverAnswers(Hangs):
    """Its tool may hang."""

    def step(self, action: str) -> Any:
        if "hang" in action:
            self.hang()
        return super().step(action)


WAITS = f"{__name__}:Waits"
MakeLoop = Callable[..., RolloutLoop]


@pytest.fixture
def make_loop() -> Iterator[MakeLoop]:
    """``make_loop(script, env_class, env_config, **settings)``; threads that hang are let go afterwards."""
    loops: list[RolloutLoop] = []
    Waits.released.clear()

    def make(script: Any, env_class: type = ToolEnv, env: dict | None = None, **settings: Any) -> RolloutLoop:
        engine = ScriptedEngine(script, lambda request: 2)
        given = {"max_prompt_tokens": 100, **settings}
        loops.append(scripted_loop(engine, lambda: env_class(env), pool=TellingPool, **given))
        return loops[-1]

    yield make
    Waits.released.set()
    for loop in loops:
        loop.close()


def says(first: str) -> Callable[[str], str]:
    """Writes ``first``, and after a tool's result the answer 2."""
    return lambda so_far: RIGHT if "<result>" in so_far else first


def ends(group: TrajectoryGroup) -> list[str]:
    return [trajectory.end for trajectory in group.trajectories]


@pytest.mark.parametrize(
    ("first", "observations", "end"),
    [
        ("I will never stop. " * 50, [""], "length"),
        ("<python>" + "x = 1\n" * 100, [""], "length"),
        ("<python>1 + 1</pyth", [""], "eos"),
        ("<python>1 + 1", [""], "eos"),
        ("1 + 1</python>", [""], "eos"),
        ("<answer>2", [""], "eos"),
        ("\n", [""], "eos"),
        ("<python><python>1 + 1</python></python>", ["2", ""], "answer"),
        ("<answer><python>1 + 1</python></answer>", ["2", ""], "answer"),
        ("As in `<python>`, or '<answer>': <python>1 + 1</python>", ["2", ""], "answer"),
        ("<python>print('</python>')</python>", [QUOTED, ""], "answer"),
        ("<python></python>", ["(no code)", ""], "answer"),
        ("<python>\n \n</python>", ["(no code)", ""], "answer"),
        ("\udcff\udcfe\udce2\udc82<python>1 + 1 # \udcf0\udc9f</python>", ["2", ""], "answer"),
        ("<python>'\udcc3'</python>", ["'�'", ""], "answer"),
    ],
)
def test_whatever_a_model_writes(make_loop: MakeLoop, first: str, observations: list[str], end: str, tmp_path: Path) -> None:
    loop = make_loop(says(first), group_size=2)
    (group,) = loop.run([TWO])
    for trajectory in group.trajectories:
        assert (trajectory.end, [step.observation for step in trajectory.steps]) == (end, observations)
        assert trajectory.reward == (end == "answer")
        sampled = first.encode("utf-8", "surrogateescape")[:400]
        assert bytes(trajectory.token_ids[: len(sampled)]) == sampled
        assert bytes(trajectory.token_ids).decode(errors="replace") == trajectory.text
        assert len(trajectory.token_ids) == len(trajectory.kinds) == len(trajectory.logprobs) == len(trajectory.entropies)
    assert loop.stats.ends == {end: 2}
    write_transcripts(str(tmp_path), "all.jsonl", [group])
    written = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text("utf-8").splitlines()]
    assert [(t["token_ids"], t["text"]) for t in written] == [(t.token_ids, t.text) for t in group.trajectories]


def test_a_hundred_tool_calls(make_loop: MakeLoop) -> None:
    def count_to_100(so_far: str) -> str:
        calls = so_far.count("<result>")
        return f"<python>{calls}</python>" if calls < 100 else RIGHT

    loop = make_loop(count_to_100, env={"max_tool_calls": 100}, group_size=1, max_response_tokens=10000)
    (trajectory,) = loop.run([TWO])[0].trajectories
    assert (trajectory.end, trajectory.reward, len(trajectory.steps)) == ("answer", 1.0, 101)
    assert [step.observation for step in trajectory.steps[:-1]] == [str(call) for call in range(100)]
    assert loop.stats.tool_calls == {"python": 100}


def test_an_engine_that_broke_leaves_nothing_for_the_next_run(make_loop: MakeLoop) -> None:
    loop = make_loop(says("<python>1 + 1</python>"))
    assert isinstance(loop.engine, ScriptedEngine)
    loop.run([TWO])
    polls = loop.engine.polls
    for broken_at in range(1, polls + 1):  # at every stage of a run
        loop.engine.fail_at_poll = loop.engine.polls + broken_at
        with pytest.raises(EngineError, match="the engine broke"):
            loop.run([TWO, *OTHERS])
        assert loop.engine.num_unfinished == 0
        loop.engine.fail_at_poll = None
        groups = loop.run([TWO, *OTHERS])
        assert [(group.question, ends(group)) for group in groups] == [(q, ["answer"] * 4) for q in (TWO, *OTHERS)]
        assert loop.stats.ends == {"answer": 12} and loop.stats.tool_calls == {"python": 12}


def test_environments_come_back_from_runs_that_end_and_runs_that_break(make_loop: MakeLoop) -> None:
    loop = make_loop(says("<python>1 + 1</python>"), tool_workers=1)
    assert isinstance(loop.engine, ScriptedEngine)
    poll = loop.engine.poll

    def break_when_all_write() -> list[Completion]:
        if loop.engine.num_unfinished == 4:
            raise EngineError("the engine broke")
        return []

    loop.engine.poll = break_when_all_write  # type: ignore[method-assign]
    with pytest.raises(EngineError) as held:  # what it refers to is not collected
        loop.run([TWO])
    assert held.value and len(loop.envs._idle) == 4
    loop.engine.poll = poll  # type: ignore[method-assign]
    loop.run([TWO])
    assert len(loop.envs._idle) == 4


def test_a_request_that_the_engine_refuses_costs_its_trajectory(make_loop: MakeLoop) -> None:
    loop = make_loop(says("<python>1 + 1</python>"))
    accept = loop.engine.submit

    def submit(request: GenerationRequest) -> None:
        if request.request_id.endswith("/two/1/2"):
            raise RequestError("longer than the model")
        accept(request)

    loop.engine.submit = submit  # type: ignore[method-assign]
    groups = loop.run([TWO, *OTHERS])
    assert [ends(group) for group in groups] == [["answer", "error", "answer", "answer"], ["answer"] * 4, ["answer"] * 4]
    assert groups[0].trajectories[1].error == "longer than the model"
    assert loop.stats.ends == {"answer": 11, "error": 1}


def hang_at_step_1(so_far: str) -> str:
    """Of the question ``TWO``; the others answer then."""
    if "<result>" not in so_far:
        return "<python>1 + 1</python>"
    return "<wait>hang</wait>" if TWO.text in so_far else RIGHT


def test_a_tool_that_never_returns(make_loop: MakeLoop, caplog: pytest.LogCaptureFixture) -> None:
    """Every thread hangs; that costs these trajectories, and whatever comes next has threads again."""
    tools = {"tools": ["python", WAITS]}
    loop = make_loop(hang_at_step_1, NeverAnswers, tools, tool_workers=4, step_timeout_s=DEADLINE_S)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            groups = loop.run([TWO, *OTHERS])
        assert [ends(group) for group in groups] == [["error"] * 4, ["answer"] * 4, ["answer"] * 4]
        pattern = r"question two, trajectory 0/two/(\d), step 1, tool wait, .* old: env.step has not returned after 6\d\d"
        found = [re.match(pattern, message) for message in caplog.messages]
        assert sorted(match[1] for match in found if match) == ["0", "1", "2", "3"]
        assert loop.envs._idle and not any(env.hung for env in loop.envs._idle)  # nobody is lent what a thread still uses


class Lent:
    """One trajectory's environment, in a call that began so many seconds ago."""

    question, stop, env_failed, plan = TWO, (), False, SimpleNamespace(env_steps=None)

    def __init__(self, env: ToolEnv, seconds: float) -> None:
        self.env: Any = env
        self.env_started: float | None = time.monotonic() - seconds


def test_a_deadline_is_for_one_call_of_a_turn() -> None:
    env = ToolEnv({"tools": ["python"], "protocol": {"format": "native"}})
    env.reset(options={"question": TWO})
    call = Call("python", {"code": "import time\ntime.sleep(0.2)"})
    env.step(Turn.of("", calls=(call,) * 3, native=True))
    assert env.extra_s >= 0.6
    env.extra_s = 200.0
    assert overdue_s(Lent(env, 250), 100) == 0.0
    assert overdue_s(Lent(env, 350), 100) >= 350
    env.step(Turn.of("", calls=(), native=True))
    assert env.extra_s == 0.0


def test_an_environment_that_cannot_let_go_is_lent_to_nobody_and_ends_no_run() -> None:
    pool = EnvPool(ToolEnv, "answer")
    for error in (OSError("no more threads"), SystemExit("no more")):
        lent = Lent(ToolEnv(), 0)

        def refuse(error: BaseException = error) -> None:
            raise error

        lent.env.end_sessions = refuse
        pool.release(lent)
    assert pool._idle == []


def test_an_environment_that_never_starts(make_loop: MakeLoop) -> None:
    loop = make_loop(says("<python>1 + 1</python>"), NeverStarts, tool_workers=4, step_timeout_s=DEADLINE_S)
    groups = loop.run([TWO, *OTHERS])
    assert [ends(group) for group in groups] == [["error"] * 4, ["answer"] * 4, ["answer"] * 4]
    assert "env.reset has not returned" in groups[0].trajectories[0].error


def test_what_a_users_tool_and_environment_do_costs_their_trajectory(make_loop: MakeLoop) -> None:
    tools = {"tools": [WAITS]}
    assert ends(make_loop(says("<wait>exit</wait>"), env=tools).run([TWO])[0]) == ["error"] * 4
    (group,) = make_loop(says(RIGHT), Unscored).run([TWO])
    assert ends(group) == ["error"] * 4
    assert "env.step failed: reward = None" in group.trajectories[0].error
    (group,) = make_loop(says("<wait>half</wait>"), env=tools).run([TWO])
    assert ends(group) == ["answer"] * 4
    assert group.trajectories[0].steps[0].observation == "a?b"


EXITS = """
import faulthandler, sys, threading, time
faulthandler.dump_traceback_later(90, exit=True)  # where it hangs, if it does
sys.path[:0] = {folders!r}
from test_reliability import TWO, Waits, ToolEnv, WAITS, says
from scripted import ScriptedEngine, scripted_loop
engine, settings = ScriptedEngine(says("<wait>hang</wait>")), {{"group_size": 2, "step_timeout_s": {deadline}}}
loop = scripted_loop(engine, lambda: ToolEnv({{"tools": [WAITS]}}), **settings)
if {interrupted}:
    threading.Timer(1.0, __import__("_thread").interrupt_main).start()
print([t.end for t in loop.run([TWO])[0].trajectories], flush=True)
"""


@pytest.mark.parametrize(
    ("interrupted", "deadline", "status", "output"), [(False, 0.5, 0, "['error', 'error']\n"), (True, 600, 1, "")]
)
def test_a_process_ends_although_a_tool_hangs(interrupted: bool, deadline: float, status: int, output: str) -> None:
    code = EXITS.format(folders=[str(Path(__file__).parent), str(SUPPORT)], interrupted=interrupted, deadline=deadline)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert (done.stdout, done.returncode != 0) == (output, bool(status)), done.stderr[-2000:]
    assert ("KeyboardInterrupt" in done.stderr) == interrupted
