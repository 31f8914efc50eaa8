"""Machines that do not give a layer: a filter makes this one answer as an older kernel or a stricter container does."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

# What is refused, with the error of the kernels and containers that do so.
REFUSED = {
    "landlock": (
        {"landlock_create_ruleset": 38, "landlock_add_rule": 38, "landlock_restrict_self": 38},
        "Function not implemented",
    ),
    "seccomp": ({"seccomp": 22}, "Invalid argument"),
    "rlimits": ({"prlimit64": 1}, "not allowed|not permitted"),
    "namespaces": ({"unshare": 1}, "not permitted"),
}
PROGRAM = """
import json, struct, sys
from rapo_rllib.sandbox.inside import seccomp
from rapo_rllib.sandbox.inside.syscalls import MACHINE, NUMBERS
from rapo_rllib.tools.python import PythonTool
refused, options = json.loads(sys.argv[1])
program = struct.pack("=HBBI", 0x20, 0, 0, 0)
for name, error in refused.items():
    program += struct.pack("=HBBIHBBI", 0x15, 0, 1, NUMBERS[MACHINE][name], 0x06, 0, 0, 0x50000 | error)
seccomp.install(program + struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
try:
    tool = PythonTool(preload=[], **options)
except ValueError as error:
    print("refused:", error)
else:
    print(tool.sandbox.layers, tool.run("1 + 1").text, tool.run("import time\\ntime.sleep(99)").error)
"""


def run_without(layers: list[str], **options: object) -> str:
    """What a python tool says on a machine without ``layers``."""
    refused = {name: error for layer in layers for name, error in REFUSED[layer][0].items()}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps([refused, {"timeout_s": 1, **options}])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("layer", ["landlock", "seccomp", "rlimits"])
def test_without_a_required_layer_the_tool_refuses(layer: str) -> None:
    said = run_without([layer])
    assert said.startswith("refused: env_config.tools: python option backend = 'forkserver': this machine does not give")
    assert f"the layer '{layer}' (" in said
    assert "allow_weak_sandbox: true" in said


@pytest.mark.parametrize("layer", ["landlock", "seccomp", "rlimits"])
def test_without_it_on_request(layer: str) -> None:
    layers, _, rest = run_without([layer], allow_weak_sandbox=True).partition(") ")
    assert repr(layer) not in layers
    assert "namespaces" in layers or "landlock" in layers
    assert rest == "2 timeout\n"


def test_without_namespaces_the_tool_does_without() -> None:
    assert run_without(["namespaces"]) == "('rlimits', 'landlock', 'seccomp') 2 timeout\n"
    assert "the layer 'namespaces' (unshare: Operation not permitted)" in run_without(["namespaces"], namespaces="required")


def test_without_anything() -> None:
    assert run_without(list(REFUSED), allow_weak_sandbox=True) == "() 2 timeout\n"
