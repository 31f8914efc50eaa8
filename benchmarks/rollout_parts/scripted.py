"""Real generation of scripted length: an engine whose steps end when the plan says, and an environment of slow tools.

The model computes and samples every token as in training, entropies and logprobs included. Only where a step ends is taken
from the ``Plan`` instead of a stop string or EOS, because a schedule can only be compared with another one on equal work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium

from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.vllm.engine import VLLMEngine, _sampling_params
from rollout_parts.plan import Plan

OBSERVATION = "The service found 3 records; the first one says 17 apples, 4 boxes and 2 days."
NEVER_WRITTEN = ("</never-written-1>", "</never-written-2>")  # looked for in every text, as stop strings are in training


def trajectory_and_step(request_id: str) -> tuple[str, int]:
    """``version/question/index/number`` as the rollout loop names requests -> ``question/index`` and the step, from 0."""
    _version, question, index, number = request_id.split("/")
    return f"{question}/{index}", int(number) - 1


class ScriptedLengthEngine(VLLMEngine):
    """The engine as it is, and with a ``plan`` one that generates exactly the planned number of tokens in each step."""

    plan: Plan | None = None

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; with a plan its length is the planned one, and neither EOS nor a stop string ends it."""
        if self.plan is None:
            super().submit(request)
            return
        planned = self.plan.tokens(*trajectory_and_step(request.request_id))
        if planned > request.max_tokens:
            raise ValueError(f"{request.request_id}: {planned} tokens planned, room for {request.max_tokens}")
        params = _sampling_params(replace(request, max_tokens=planned, stop=NEVER_WRITTEN, end_ids=()))
        params.ignore_eos = True
        self._engine.add_request(request.request_id, {"prompt_token_ids": list(request.token_ids)}, params)

    def poll(self) -> list[Completion]:
        """One engine step; a planned step counts as ended by its stop string."""
        completions = super().poll()
        return completions if self.plan is None else [replace(done, finish="stop") for done in completions]

    def warm_up(self, prompts: Sequence[Sequence[int]]) -> None:
        """Generate a little, so that nothing measured is the first of its kind."""
        for index, prompt in enumerate(prompts):
            super().submit(GenerationRequest(f"warm-up-{index}", prompt, 4))
        while self.num_unfinished:
            super().poll()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache, as every weight update in training does."""
        self._engine.reset_prefix_cache()


class SlowToolEnv(gymnasium.Env[str, str]):
    """Treats every step but the planned last one as a tool call that takes the planned time and answers one fixed line.

    One trajectory per question: the question's id and index 0 name it in the plan.
    """

    tool_tags = ("search",)

    def __init__(self, plan: Plan, wait: Callable[[float], None] = time.sleep) -> None:
        self._plan = plan
        self._wait = wait
        self._name, self._calls = "", 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode on ``options["question"]``."""
        question = (options or {})["question"]
        self._name, self._calls = f"{question.id}/0", 0
        return question.text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Call the tool, or end."""
        if self._calls == self._plan.num_calls(self._name):
            return "", 0.0, True, False, {}
        seconds = self._plan.latency_s(self._name, self._calls)
        self._calls += 1
        self._wait(seconds)
        return OBSERVATION, 0.0, False, False, {"tool": "search", "tool_seconds": seconds}
