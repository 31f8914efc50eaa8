"""Limits are held from outside; one tool serves a process; sessions belong to trajectories."""

import copy
import gc
import threading
from typing import ClassVar

import pytest
from buffer_helpers import wait_until

from rapo_rllib.errors import ToolError
from rapo_rllib.tools import ToolLimits, ToolResult, shared_tools
from rapo_rllib.tools.bounded import MAX_HUNG_CALLS, BoundedSession, BoundedTool


class Counts:
    """Remembers its calls, per trajectory; a closed tool says so."""

    name = tag = "counts"
    limits = ToolLimits()
    closed: ClassVar[list[str]] = []

    def __init__(self, label: str = "") -> None:
        self.label = label

    def run(self, input: str) -> ToolResult:
        return ToolResult("no session")

    def session(self) -> "Notebook | None":
        return None if self.label == "stateless" else Notebook([])

    def close(self) -> None:
        self.closed.append(self.label)


class Notebook:
    def __init__(self, inputs: list[str]) -> None:
        self.inputs = inputs

    def run(self, input: str) -> ToolResult:
        self.inputs.append(input)
        return ToolResult(" ".join(self.inputs))

    def fork(self) -> "Notebook":
        return Notebook(list(self.inputs))

    def close(self) -> None:
        Counts.closed.append(" ".join(self.inputs))


class Gate:
    """Every call waits until the gate is opened."""

    name = tag = "gate"
    limits = ToolLimits(timeout_s=0.1)

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = self.most = 0
        self.lock = threading.Lock()

    def run(self, input: str) -> ToolResult:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.open.wait()
        with self.lock:
            self.inside -= 1
        return ToolResult("through")


COUNTS = f"{__name__}:Counts"


@pytest.fixture(autouse=True)
def nothing_closed() -> None:
    gc.collect()
    Counts.closed.clear()


def test_equal_entries_share_a_tool_which_is_closed_after_its_last_use() -> None:
    a, b = (shared_tools({"name": COUNTS, "options": {"label": "x"}})[0] for _ in range(2))
    other = shared_tools({"name": COUNTS, "options": {"label": "y"}})[0]
    assert a is b and a is not other and copy.deepcopy(a) is a
    del a
    gc.collect()
    assert Counts.closed == []
    del b
    gc.collect()
    assert Counts.closed == ["x"]
    assert other.tool.label == "y"


def test_a_session_keeps_state_and_a_fork_goes_on_alone() -> None:
    tool = shared_tools(COUNTS)[0]
    session = tool.session()
    session.run("1")
    fork = copy.deepcopy(session)
    assert session.run("2").text == "1 2"
    assert fork.run("3").text == "1 3"
    assert tool.session().run("4").text == "4"
    session.close()
    session.close()
    assert Counts.closed.count("1 2") == 1
    del fork
    gc.collect()
    assert Counts.closed.count("1 3") == 1  # nobody has to close a session that is dropped


def test_without_state_a_session_is_the_tool() -> None:
    assert shared_tools({"name": COUNTS, "options": {"label": "stateless"}})[0].session().run("1").text == "no session"


def test_a_call_that_takes_too_long_is_given_up() -> None:
    gate = Gate()
    tool = BoundedTool(gate)
    result = tool.run("x")
    assert (result.text, result.error) == ("TimeoutError: gate ran longer than 0.1 s", "timeout")
    assert result.seconds >= 0.1
    gate.open.set()
    assert wait_until(lambda: tool.run("x").text == "through", 60)


class Slow:
    """One trajectory's calls, each of which waits until the gate is opened; a branch says that it will take longer."""

    def __init__(self, gate: Gate, extra_s: float = 0.0) -> None:
        self.gate, self.extra_s = gate, extra_s

    def run(self, input: str) -> ToolResult:
        return self.gate.run(input)

    def close(self) -> None:
        self.gate.open.set()

    def fork(self) -> "Slow":
        return Slow(self.gate, extra_s=60.0)


def test_a_session_has_one_call_at_a_time_also_if_the_last_was_given_up() -> None:
    gate = Gate()
    session = BoundedSession(BoundedTool(gate, ToolLimits(timeout_s=0.2)), Slow(gate))
    assert session.run("x").text == "TimeoutError: gate ran longer than 0.2 s"
    assert session.run("y").text == "TimeoutError: gate waited for its turn longer than 0.2 s"
    gate.open.set()
    assert wait_until(lambda: session.run("y").text == "through", 60)
    assert gate.most == 1


def test_a_branch_that_does_things_again_has_the_time_for_it() -> None:
    gate = Gate()
    session = BoundedSession(BoundedTool(gate), Slow(gate))
    branch = copy.deepcopy(session)
    threading.Timer(1.0, gate.open.set).start()  # the tool's limit is 0.1 s
    assert branch.run("x").text == "through"
    session.close()


def test_a_tool_of_which_every_call_hangs_is_broken() -> None:
    gate = Gate()
    tool = BoundedTool(gate, ToolLimits(timeout_s=0.001))
    for _ in range(MAX_HUNG_CALLS):
        assert tool.run("x").error == "timeout"
    with pytest.raises(ToolError, match="tool gate: 64 calls hang"):
        tool.run("x")
    gate.open.set()
    assert wait_until(lambda: not gate.inside, 60)
    assert BoundedTool(gate, ToolLimits(timeout_s=60)).run("x").text == "through"


def shout(input: str, mark: str = "!") -> str:
    """Says it louder.

    Args:
        input: What.
        mark: The end.
    """
    return input.upper() + mark


class Breaks(Counts):
    def run(self, input: str) -> ToolResult:
        raise KeyError(input)


def test_a_function_is_a_tool() -> None:
    tool = shared_tools({"name": f"{__name__}:shout", "options": {"mark": "?"}, "limits": {"max_output_chars": 4}})[0]
    assert (tool.name, tool.tag, tool.limits.timeout_s) == ("shout", "shout", 30.0)
    result = tool.run(tool.read("oh")[0])
    assert result.text == "OH?"
    assert result.seconds > 0
    assert tool.run('{"input": "longer"}').text == "LONG\n... (output cut after 4 characters)"


def test_what_a_tool_raises_is_raised() -> None:
    with pytest.raises(KeyError, match="x"):
        shared_tools(f"{__name__}:Breaks")[0].run("x")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": COUNTS, "limits": {"timeout": 3}}, "did you mean 'env_config.tools: limits.timeout_s'"),
        ({"name": COUNTS, "limits": {"timeout_s": 0}}, "limits.timeout_s = 0: must be a positive number"),
        (
            {"name": COUNTS, "limits": {"max_output_chars": 1.5}},
            "limits.max_output_chars = 1.5: must be a positive whole number",
        ),
        ({"name": COUNTS, "limits": 3}, "limits of .* = 3: must be a mapping"),
        ({"name": f"{__name__}:shout", "options": {"marc": 1}}, "options.marc': did you mean '.*options.mark'"),
        (7, "env_config.tools: 7: each entry is a name or"),
    ],
)
def test_a_wrong_entry_is_named(entry: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shared_tools(entry)[0]
