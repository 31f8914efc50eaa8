"""The remote backend: code runs on a service, which promises what it promises.

``format: rapo``: ``POST {url}`` with ``{"code": ..., "timeout_s": ..., "memory_mb": ..., "max_output_bytes": ...}``.
The service prints the value of a last expression, as a notebook does, and answers ``{"output": "...", "outcome": "ok"}``.
Outcomes: ok, exception, syntax, memory, timeout, killed, output, exit.

``format: sandbox_fusion``: ``POST {url}/run_code`` in the request and response form of SandboxFusion.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any

from rapo_rllib.errors import ServiceError, ToolError
from rapo_rllib.sandbox.base import ENDED, SandboxLimits, SandboxProcess, SandboxResult
from rapo_rllib.sandbox.inside.runner import STATUSES
from rapo_rllib.sandbox.settings import require
from rapo_rllib.services.http_json import JsonService

_NETWORK_S = 10.0  # beyond the code's own time

# What a notebook does with a last expression, for services that run plain files; {code!r} is the model's.
_NOTEBOOK = """
import ast, sys, traceback
source = {code!r}
names = {{"__name__": "__main__"}}
try:
    tree = ast.parse(source, "<python>")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<python>", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "<python>", "eval"), names) if last else None
    if value is not None:
        print(repr(value))
except SystemExit:
    pass
except BaseException as error:
    print(traceback.format_exception_only(type(error), error)[-1].strip())
    sys.stdout.flush()
    sys.exit({exception} if not isinstance(error, SyntaxError) else {syntax})
"""


class RemoteSandbox:
    """Sends every call to a service; it keeps no state between them.

    Args:
        url: of the service.
        token_env: the environment variable with the bearer token; None: no token.
        format: see the head of this file.

    Raises:
        ValueError: the variable is not set.
    """

    layers: tuple[str, ...] = ("remote",)

    def __init__(self, url: str, token_env: str | None = None, format: str = "rapo") -> None:
        self._url, self._fusion = url.rstrip("/"), format == "sandbox_fusion"
        self._headers = {}
        if token_env is not None:
            token = os.environ.get(token_env)
            require(
                bool(token), "remote_token_env", token_env, "that environment variable is not set; export it with the token"
            )
            self._headers = {"authorization": f"Bearer {token}"}
        self._services: dict[float, JsonService] = {}

    def run(self, code: str, limits: SandboxLimits) -> SandboxResult:
        """One request, repeated while that can help.

        Raises:
            ToolError: the service is gone, refuses, or does not keep to the form.
        """
        started = time.monotonic()
        code = code.encode("utf-8", "replace").decode()
        try:
            output, outcome = (self._run_fusion if self._fusion else self._run)(code, limits)
        except ServiceError as error:
            raise ToolError(f"python tool: {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ToolError(f"python tool: the remote sandbox's answer lacks something: {error!r}") from error
        seconds = time.monotonic() - started
        return SandboxResult(output.encode("utf-8", "replace")[: limits.max_output_bytes + 1], outcome, seconds)

    def open(self, limits: SandboxLimits, seed: int) -> SandboxProcess:
        """Not possible here."""
        raise ToolError("python tool: the remote backend keeps no state")

    def close(self) -> None:
        """Close the connections."""
        for service in self._services.values():
            service.close()

    def _request(self, url: str, body: Mapping[str, Any], timeout_s: float) -> Any:
        service = self._services.setdefault(timeout_s, JsonService("remote sandbox", timeout_s + _NETWORK_S))
        return service.request("POST", url, json=body, headers=self._headers)

    def _run(self, code: str, limits: SandboxLimits) -> tuple[str, str]:
        body = {
            "code": code,
            "timeout_s": limits.timeout_s,
            "memory_mb": limits.memory_mb,
            "max_output_bytes": limits.max_output_bytes,
        }
        answer = self._request(self._url, body, limits.timeout_s)
        output, outcome = answer["output"], answer["outcome"]
        if not isinstance(output, str) or outcome not in {*STATUSES, *ENDED}:
            raise ToolError(f"python tool: the remote sandbox answers with outcome {outcome!r}, which we do not know")
        return output, outcome

    def _run_fusion(self, code: str, limits: SandboxLimits) -> tuple[str, str]:
        program = _NOTEBOOK.format(code=code, exception=_EXCEPTION, syntax=_SYNTAX)
        body = {
            "code": program,
            "language": "python",
            "run_timeout": limits.timeout_s,
            "memory_limit_MB": math.ceil(limits.memory_mb),
        }
        answer = self._request(f"{self._url}/run_code", body, limits.timeout_s)
        ran = answer["run_result"]
        if answer["status"] == "SandboxError" or ran is None:
            raise ToolError(f"python tool: the remote sandbox failed: {answer.get('message') or answer['status']!r}")
        output = (ran["stdout"] or "") + (ran["stderr"] or "")
        if ran["status"] == "TimeLimitExceeded":
            return output, "timeout"
        return output, _OF_EXIT.get(ran["return_code"], "killed" if (ran["return_code"] or 0) < 0 else "exit")


_EXCEPTION, _SYNTAX = 101, 102
_OF_EXIT = {0: "ok", _EXCEPTION: "exception", _SYNTAX: "syntax"}
