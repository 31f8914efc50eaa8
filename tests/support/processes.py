"""New processes of tests: forked from one that has imported what takes seconds, so that each of them need not."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable

PRELOADED = [
    "rapo_rllib.learner.learner",
    "rapo_rllib.buffer.store",
    "pymilvus",
    "sentence_transformers",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)  # a process has one such server, whoever asks for it first


def run_until_it_kills_itself(target: Callable[..., object], *arguments: object) -> None:
    """Have a new process do what ends with its SIGKILL."""
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    process.join(400)
    assert process.exitcode == -signal.SIGKILL
