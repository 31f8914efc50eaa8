import sys

import pytest

from rapo_rllib.tools import Tool, ToolLimits, ToolResult, make_tool
from rapo_rllib.tools.python import PythonTool


class Echo:
    name = "echo"
    tag = "say"
    limits = ToolLimits()

    def run(self, input: str) -> ToolResult:
        return ToolResult(input)


class Needs(Echo):
    def __init__(self, unit: str) -> None:
        self.unit = unit


class NoTool:
    pass


@pytest.mark.process  # what the machine can enforce is tried in a process
def test_by_short_name_with_options() -> None:
    tool = make_tool("python", timeout_s=2, memory_mb=300)
    assert isinstance(tool, PythonTool)
    assert isinstance(tool, Tool)
    assert (tool.timeout_s, tool.memory_mb, tool.max_output_chars) == (2, 300, 2000)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pyton", {}, r"env_config.tools: unknown tool 'pyton': did you mean 'python'\?"),
        ("zzz", {}, "unknown tool 'zzz': valid keys: calculator, python, search, web_search"),
        ("no.such.module:Tool", {}, "cannot import 'no.such.module:Tool'"),
        (f"{__name__}:Gone", {}, "cannot import"),
        (f"{__name__}:NoTool", {}, "is no tool: it lacks name, tag, limits, run"),
        ("python", {"timeout": 3}, "python: options.timeout': did you mean 'env_config.tools: python: options.timeout_s'"),
        (f"{__name__}:Needs", {}, "tool 'test_make_tool:Needs': missing a required argument: 'unit': give it in options"),
        ("python", {"timeout_s": 0}, "timeout_s = 0: must be a number above 0"),
        ("python", {"memory_mb": "1g"}, "memory_mb = '1g': must be a number above 0"),
    ],
)
def test_a_wrong_tool_is_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_tool(name, **options)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rapo_rllib.web_search")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diskcache", None)  # as where it is not installed
    with pytest.raises(ValueError, match=r"cannot import 'web_search': .* run `pip install 'rapo_rllib\[web-search\]'`"):
        make_tool("web_search", provider="tavily")
