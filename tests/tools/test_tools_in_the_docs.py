"""The tools of docs/tools.md, as they stand there."""

import re
import sys
import types
from pathlib import Path

import pytest
import yaml

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.types import Question

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "tools.md").read_text(encoding="utf-8").partition("\n## Search\n")[0]


def test_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_tools")
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(block, vars(module))
    monkeypatch.setitem(sys.modules, "my_tools", module)
    first, server, config, same_server = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    assert ToolEnv(yaml.safe_load(first)["env_config"]).tool_tags == ("weather",)
    (short,), (whole,) = (yaml.safe_load(text)["env_config"]["tools"] for text in (server, same_server))
    assert short["mcp"] == whole["mcp"]
    native = {**yaml.safe_load(config)["env_config"], "protocol": {"format": "native"}}
    assert len(ToolEnv(native).tool_schemas) == 4
    env = ToolEnv({**yaml.safe_load(config)["env_config"], "max_tool_calls": 4})
    assert env.tool_tags == ("python", "thermometer", "shout", "weather")
    env.reset(options={"question": Question("q", "?", "1")})
    assert env.step("<thermometer>Rome</thermometer>")[0] == "18 °C in Rome"
    observation, *_, info = env.step("<thermometer></thermometer>")
    assert (observation, info["tool_error"]) == ("Where?", "empty")
    assert env.step("<shout>ja</shout>")[0] == "JA!"
    assert env.step('<weather>{"city": "Rome", "days": 2}</weather>')[0] == "18 °C in Rome for 2 days"
