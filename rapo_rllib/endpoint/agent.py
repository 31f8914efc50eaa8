"""One run of a user's agent: a function on a thread or in a process, or a program. It ends once, at its deadline at last.

Agent.start --base URL--> function or program --what it returned, or its error--> Ended
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any

from rapo_rllib.endpoint.env import AgentOptions
from rapo_rllib.endpoint.function import GIVEN, Ended, call_function
from rapo_rllib.services.programs import with_parent
from rapo_rllib.types import Question

MOST_OUTPUT = 1 << 20  # bytes that a program may print
_CALL = "from rapo_rllib.endpoint.function import call_for_parent; call_for_parent()"


class Agent:
    """Runs an agent for one question.

    Args:
        options: which, and its deadline.
        question: of the trajectory.
        text: of the question, as the environment put it.
        base_url: where the policy answers.
        tell: called with its end, by another thread; more than once where its deadline comes first.
    """

    def __init__(
        self, options: AgentOptions, question: Question, text: str, base_url: str, tell: Callable[[Ended], None]
    ) -> None:
        self._options, self._question, self._tell = options, question, tell
        self._given: dict[str, Any] = dict(zip(GIVEN, (text, base_url, question), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()
        late = Ended(error=f"the agent has not ended in {options.agent_timeout_s:g} s (env_config.agent_timeout_s)", late=True)
        self._deadline = threading.Timer(options.agent_timeout_s, tell, [late])
        self._deadline.daemon = True

    def start(self) -> None:
        """Start it on a thread."""
        self._deadline.start()
        threading.Thread(target=self._run, daemon=True, name="rapo-agent").start()

    def stop(self) -> None:
        """End what can be ended: a process, and what it has started. A thread goes on, and is answered no more."""
        self._deadline.cancel()
        with self._lock:
            process, self._process, self._stopped = self._process, None, True
            if process is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _run(self) -> None:
        try:
            ended = self._ended()
        except (Exception, SystemExit) as error:  # whatever it does costs its trajectory alone
            ended = Ended(error=f"the agent failed: {error!r}")
        self._tell(ended)

    def _ended(self) -> Ended:
        options = self._options
        if options.command:
            return Ended(self._output(list(options.command), self._given["question"].encode()).decode(errors="replace").strip())
        if not options.own_process:
            return Ended(call_function(options.agent, self._given, options.agent_options))
        sent = pickle.dumps(sys.path) + pickle.dumps((options.agent, self._given, options.agent_options))
        ended: Ended = pickle.loads(self._output([sys.executable, "-c", _CALL], sent))
        return ended

    def _question_as_json(self) -> str:
        """Without its row, which may be longer than a variable."""
        question = self._question
        return json.dumps({one.name: getattr(question, one.name) for one in fields(question) if one.name != "columns"})

    def _output(self, command: list[str], sent: bytes) -> bytes:
        """Return what a process in a session of its own prints; ``RuntimeError`` if it fails, or prints without an end."""
        told = {"OPENAI_BASE_URL": self._given["base_url"], "OPENAI_API_KEY": "none"}
        if self._options.command:
            told["RAPO_QUESTION"] = self._question_as_json()
        with self._lock:
            if self._stopped:
                raise RuntimeError("it was stopped before it had started")
            self._process = process = subprocess.Popen(
                with_parent(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **told},
                start_new_session=True,
            )
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):  # it may not read
            process.stdin.write(sent)
            process.stdin.close()
        printed = process.stdout.read(MOST_OUTPUT + 1)
        if len(printed) <= MOST_OUTPUT:
            with suppress(ChildProcessError):  # not reaped here: until then its number is no other's
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.stop()
        status = process.wait()
        process.stdout.close()
        if len(printed) > MOST_OUTPUT or status:
            said = f"printed more than {MOST_OUTPUT} bytes" if len(printed) > MOST_OUTPUT else f"ended with status {status}"
            raise RuntimeError(f"{command[0]} {said}; its messages are in the log of the env runner")
        return printed
