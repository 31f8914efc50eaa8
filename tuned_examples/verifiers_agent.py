"""An environment of `verifiers` 0.4 as an agent: a process of an interpreter that has it runs the tasks, and pays for them.

`verifiers` wants other versions of `openai` and `mcp` than vLLM, so it has a virtual environment of its own, with `uv`:

    python -m venv verifiers && verifiers/bin/pip install verifiers==0.4.0 uv my-environment
    verifiers/bin/python verifiers_agent.py '{"taskset": {"id": "my-environment"}}' > tasks.jsonl

    env_config:
      agent: verifiers_agent:run
      agent_options:
        python: /path/to/verifiers/bin/python
        env: {taskset: {id: my-environment}, agent: {harness: {id: "null"}, runtime: {type: subprocess}}}  # its own [env]
      dataset: tasks.jsonl                 # each question's answer is the number of its task
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any, TextIO


class Worker:
    """A process that runs tasks of one environment, as many at once as are asked for. It ends with this one."""

    def __init__(self, python: str, env: str) -> None:
        path = os.pathsep.join([os.path.dirname(python), os.environ.get("PATH", "")])  # where it finds uv
        command, pipe = [python, os.path.abspath(__file__), env, "serve"], subprocess.PIPE
        self._env, self._process = (
            env,
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, "PATH": path}),
        )
        self._lock, self._asked = threading.Lock(), dict[str, Future[float]]()
        threading.Thread(target=self._read, daemon=True).start()

    def reward(self, task: str, base_url: str) -> float:
        """Run a task, whose model answers at ``base_url``. Raises ``RuntimeError`` if it fails."""
        asked: Future[float] = Future()
        with self._lock:
            self._asked[base_url] = asked
            self._process.stdin.write(json.dumps([task, base_url]) + "\n")
            self._process.stdin.flush()
        return asked.result()

    def _read(self) -> None:
        said = "ended"
        try:
            for line in self._process.stdout:
                base_url, reward, error = json.loads(line)
                asked = self._asked.pop(base_url)
                if error:
                    asked.set_exception(RuntimeError(error))
                else:
                    asked.set_result(reward)
        except Exception as error:  # it writes what is no answer
            said = f"been ended ({error!r})"
            self._process.kill()
        said = f"the process of verifiers has {said} with status {self._process.wait()}: see the log of the env runner"
        with self._lock:
            workers.pop(self._env, None)  # the next trajectory has a new one
            for asked in self._asked.values():
                asked.set_exception(RuntimeError(said))


workers: dict[str, Worker] = {}
starting = threading.Lock()


def run(base_url: str, task: Any, python: str, env: dict[str, Any]) -> float:
    """Let the environment run the question's task; returns its reward."""
    name = json.dumps(env)
    with starting:
        if name not in workers:
            workers[name] = Worker(python, name)
    return workers[name].reward(task.answer, base_url)


async def played(env: Any, task: Any, base_url: str) -> tuple[float, str]:
    """The end of one episode: its reward, and what went wrong."""
    import verifiers.v1 as vf

    client = vf.EvalClientConfig(base_url=base_url, api_key_var="RAPO_NEEDS_NO_KEY")
    episode = await env.run_episode(task, vf.ModelContext(client=client, model="policy", sampling=vf.SamplingConfig()))
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    rewards = [trace.reward for trace in episode.traces]
    return sum(rewards) / max(len(rewards), 1), "; ".join(f"{error.type}: {error.message}" for error in errors)


async def serve(env: Any, given: TextIO, out: TextIO) -> None:
    """Play what is asked for, until nothing more can be."""
    source, tasks, running, asked = iter(env.taskset), list[Any](), set[asyncio.Task[None]](), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), given)

    async def play(number: int, base_url: str) -> None:
        try:
            tasks.extend(itertools.islice(source, max(0, number + 1 - len(tasks))))
            ended = await played(env, tasks[number], base_url)
        except Exception as error:  # costs this trajectory alone
            ended = 0.0, repr(error)
        out.write(json.dumps([base_url, *ended]) + "\n")
        out.flush()

    async with env.serving():
        while line := await asked.readline():
            number, base_url = json.loads(line)
            running.add(asyncio.create_task(play(int(number), base_url)))


def main(env: str, mode: str = "rows", most: str = "100000") -> None:
    """Print the tasks as rows of a data set; or serve. What an environment prints is neither, and it reads nothing."""
    given, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    loaded = load_environment(resolve_env_config(json.loads(env)))
    if mode == "serve":
        asyncio.run(serve(loaded, given, out))
        return
    for number, task in enumerate(itertools.islice(loaded.taskset, int(most))):
        out.write(json.dumps({"question": task.data.prompt_text, "answer": str(number)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
