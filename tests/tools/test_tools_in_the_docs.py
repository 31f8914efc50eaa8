"""The tools of docs/tools.md, as they stand there."""

import re
import sys
import types
from pathlib import Path

import pytest
import yaml

from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.types import Question

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")


def test_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_tools")
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(block, vars(module))
    monkeypatch.setitem(sys.modules, "my_tools", module)
    (config,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    env = ToolEnv(yaml.safe_load(config)["env_config"])
    assert env.tool_tags == ("python", "weather", "shout")
    env.reset(options={"question": Question("q", "?", "1")})
    assert env.step("<weather>Rome</weather>")[0] == "18 °C in Rome"
    observation, *_, info = env.step("<weather></weather>")
    assert (observation, info["tool_error"]) == ("Where?", "empty")
    assert env.step("<shout>ja</shout>")[0] == "JA!"
