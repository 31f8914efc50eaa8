"""Machines that do not give a layer: a filter makes this one answer as an older kernel or a stricter container does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rapo_rllib.sandbox import machine
from rapo_rllib.tools.python import PythonTool

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
# A process for each case: a filter is there for good. They are forked, so that what they need is imported once.
PROGRAM = """
import json, os, struct, sys, traceback
from rapo_rllib.sandbox.inside import seccomp
from rapo_rllib.sandbox.inside.syscalls import MACHINE, NUMBERS
from rapo_rllib.tools.python import PythonTool

def refuse(errors):
    program = struct.pack("=HBBI", 0x20, 0, 0, 0)
    for name, error in errors.items():
        program += struct.pack("=HBBIHBBI", 0x15, 0, 1, NUMBERS[MACHINE][name], 0x06, 0, 0, 0x50000 | error)
    seccomp.install(program + struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))

def attempt(errors, options):
    refuse(errors)
    try:
        tool = PythonTool(preload=[], timeout_s=30, **options)
    except ValueError as error:
        return f"refused: {error}"
    brief = PythonTool(preload=[], timeout_s=0.3, **options)  # in the same sandbox
    return f"{tool.sandbox.layers} {tool.run('1 + 1').text} {brief.run('import time; time.sleep(99)').error}"

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        try:
            said = attempt(*json.loads(line))
        except BaseException:
            said = traceback.format_exc()
        print(json.dumps(said), flush=True)
        sys.exit()
    os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], text=True, bufsize=1, **pipes) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()


@pytest.fixture
def run_without(program: subprocess.Popen[str]) -> Callable[..., str]:
    """``run_without(layers, **options)``: what a python tool says on a machine without them."""

    def run(layers: list[str], **options: object) -> str:
        refused = {name: error for layer in layers for name, error in REFUSED[layer][0].items()}
        assert program.stdin is not None and program.stdout is not None
        program.stdin.write(json.dumps([refused, options]) + "\n")
        return json.loads(program.stdout.readline())

    return run


@pytest.mark.parametrize("layer", ["landlock", "seccomp", "rlimits"])
def test_without_a_required_layer_the_tool_refuses(run_without: Callable[..., str], layer: str) -> None:
    said = run_without([layer])
    assert said.startswith("refused: env_config.tools: python: this machine does not give")
    assert f"the layer '{layer}' (" in said
    assert "allow_weak_sandbox: true" in said


@pytest.mark.parametrize("layer", ["landlock", "seccomp", "rlimits"])
def test_without_it_on_request(run_without: Callable[..., str], layer: str) -> None:
    layers, _, rest = run_without([layer], allow_weak_sandbox=True).partition(") ")
    assert repr(layer) not in layers
    assert "namespaces" in layers or "landlock" in layers
    assert rest == "2 timeout"


def test_without_namespaces_the_tool_does_without(run_without: Callable[..., str]) -> None:
    assert run_without(["namespaces"]) == "('rlimits', 'landlock', 'seccomp') 2 timeout"
    assert "the layer 'namespaces' (unshare: Operation not permitted)" in run_without(["namespaces"], namespaces="required")


def test_without_anything(run_without: Callable[..., str]) -> None:
    assert run_without(list(REFUSED), allow_weak_sandbox=True) == "() 2 timeout"


def test_without_pidfd_open_nothing_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.probe() | {"pidfd_open": "Function not implemented"}
    monkeypatch.setattr(machine, "probe", lambda: found)
    with pytest.raises(ValueError, match=r"does not give pidfd_open \(Function not implemented\).* a kernel from 5.3 on"):
        machine.layers_in_force("auto", allow_weak=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_state": 1}, "keep_state = 1: must be true or false"),
        ({"allow_weak_sandbox": "yes"}, "allow_weak_sandbox = 'yes': must be true or false"),
        ({"namespaces": True}, "namespaces = True: must be one of 'auto', 'required', 'off'"),
        ({"preload": "numpy"}, "preload = 'numpy': must be a list of names"),
        ({"preload": None}, "preload = None: must be a list of names"),
        ({"preload": [1]}, r"preload = \[1\]: must be a list of names"),
        ({"preload": ["no_such_package"]}, "preload: 'no_such_package' is not installed"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"env_config.tools: .*{message}"):
        PythonTool(**options)
