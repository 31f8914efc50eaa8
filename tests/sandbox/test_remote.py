"""The remote backend against a service on loopback that really runs the code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from local_service import Reply, Request, local_service

from rapo_rllib.errors import ToolError
from rapo_rllib.tools.python import PythonTool


def rapo_service(request: Request) -> Reply:
    """The contract of ``format: rapo``, in the simplest way: with the forkserver."""
    order = request.json
    tool = PythonTool(timeout_s=order["timeout_s"], memory_mb=order["memory_mb"], preload=[])
    result = tool.sandbox.run(order["code"], tool._sandbox_limits)
    return Reply({"output": result.output.decode(), "outcome": result.outcome})


@pytest.fixture(scope="module")
def running() -> PythonTool:
    """Holds that forkserver: all tools with these settings share it."""
    return PythonTool(preload=[])


def fusion_service(request: Request) -> Reply:
    """SandboxFusion's ``run_code``: a file that is run."""
    order = request.json
    assert (request.path, order["language"]) == ("/run_code", "python")
    result: dict[str, Any]
    try:
        done = subprocess.run(
            [sys.executable, "-c", order["code"]], capture_output=True, text=True, timeout=order["run_timeout"]
        )
        result = {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    except subprocess.TimeoutExpired:
        result = {"status": "TimeLimitExceeded", "return_code": None, "stdout": "", "stderr": ""}
    status = "Success" if result["return_code"] == 0 else "Failed"
    return Reply({"status": status, "message": "", "compile_result": None, "run_result": {**result, "execution_time": 0.1}})


@pytest.mark.parametrize(("format", "answer"), [("rapo", rapo_service), ("sandbox_fusion", fusion_service)])
@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        ("1 + 1", "2", None),
        ("print('ä')\n'a'", "ä\n'a'", None),
        ("x = 1", "(no output)", None),
        ("1 / 0", "ZeroDivisionError: division by zero", "exception"),
        ("x = (", "SyntaxError: '(' was never closed", "syntax"),
        ("import time\ntime.sleep(60)", "TimeoutError: the code ran longer than 0.3 s", "timeout"),
    ],
)
@pytest.mark.usefixtures("running")
def test_calls(format: str, answer: Callable[[Request], Reply], code: str, text: str, error: str | None) -> None:
    timeout_s = 0.3 if error == "timeout" else 30.0
    with local_service(answer) as service:
        result = PythonTool(timeout_s, backend="remote", remote_url=service.url, remote_format=format).run(code)
    assert result.error == error
    assert text in result.text  # SandboxFusion's file shows where a syntax error is


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAPO_TEST_TOKEN", "swordfish")
    with local_service(lambda request: Reply({"output": "", "outcome": "ok"})) as service:
        tool = PythonTool(backend="remote", remote_url=service.url, remote_token_env="RAPO_TEST_TOKEN")
        tool.run("1")
        assert service.requests[0].headers["authorization"] == "Bearer swordfish"
        assert service.requests[0].json == {"code": "1", "timeout_s": 5.0, "memory_mb": 512, "max_output_bytes": 8000}
    assert "swordfish" not in repr(vars(tool))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({}, 403), "remote sandbox answers with status 403"),
        (Reply({"output": ""}), "the remote sandbox's answer lacks something: KeyError"),
        (Reply({"output": "", "outcome": "fine"}), "answers with outcome 'fine', which we do not know"),
        (Reply(["ok"]), "lacks something"),
    ],
)
def test_a_service_that_fails_is_a_broken_tool(reply: Reply, message: str) -> None:
    with local_service(lambda request: reply) as service, pytest.raises(ToolError, match=message):
        PythonTool(backend="remote", remote_url=service.url).run("1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "docker"}, "python option backend = 'docker': must be one of forkserver, remote"),
        ({"backend": "remote"}, "python option backend = 'remote': needs remote_url"),
        ({"backend": "remote", "remote_url": "host:80"}, "remote_url = 'host:80': must begin with"),
        ({"remote_url": "http://h"}, "remote_url = 'http://h': needs backend: remote"),
        ({"remote_token_env": 3}, "remote_token_env = 3: must be a text"),
        (
            {"backend": "remote", "remote_url": "http://h", "remote_token_env": "NO_SUCH"},
            "'NO_SUCH': that environment variable",
        ),
        ({"backend": "remote", "remote_url": "http://h", "remote_format": "x"}, "remote_format = 'x': must be one of rapo"),
        ({"backend": "remote", "remote_url": "http://h", "keep_state": True}, "keep_state = True: needs backend"),
        ({"keep_state": 1}, "keep_state = 1: must be true or false"),
        ({"allow_weak_sandbox": "yes"}, "allow_weak_sandbox = 'yes': must be true or false"),
        ({"namespaces": True}, "namespaces = True: must be one of auto, required, off"),
        ({"preload": "numpy"}, "preload = 'numpy': must be a list of names"),
        ({"packages": [1]}, r"packages = \[1\]: must be a list of names"),
        ({"packages": ["no-such-package"]}, "packages: 'no-such-package' is not installed"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"env_config.tools: .*{message}"):
        PythonTool(**options)
