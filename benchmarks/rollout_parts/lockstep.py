"""The rollout schedule of the released code (algorithm.md section 9), as the reference: everybody waits for the slowest.

Every round: generate the next step of all trajectories under way, until the last one has finished; then run the tools of all of
them side by side, until the slowest has answered; then the next round. Engine, environments and text protocol are ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.protocol.chat import ChatProtocol, without_spill
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.rollout.engine import Completion, Engine, GenerationRequest
from rapo_rllib.types import Question


@dataclass
class _Row:
    """One trajectory: everything so far as tokens, and how many of them were generated."""

    question: Question
    env: Any
    token_ids: list[int]
    num_prompt: int
    generated: int = 0
    completion: Completion | None = None


@dataclass
class LockstepResult:
    """Result of a run."""

    seconds: float
    generated_tokens: dict[str, int] = field(default_factory=dict)  # by question id
    response_tokens: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    tools_s: float = 0.0  # wall time of the rounds in which only tools ran


def run_lockstep(
    engine: Engine, chat: ChatProtocol, make_env: Callable[[], Any], questions: Sequence[Question], max_tokens: int
) -> LockstepResult:
    """Roll out one trajectory per question.

    Args:
        engine: generates steps.
        chat: turns text into tokens.
        make_env: makes one text environment.
        questions: what to roll out.
        max_tokens: limit of a step.
    """
    started = time.monotonic()
    result = LockstepResult(0.0)
    with ThreadPoolExecutor(len(questions)) as threads:
        rows = list(threads.map(lambda question: _open(question, make_env(), chat), questions))
        active = rows
        while active:
            _generate(engine, active, max_tokens, result.rounds)
            before = time.monotonic()
            go_on = list(threads.map(lambda row: _step(row, chat), active))
            active = [row for row, goes_on in zip(active, go_on, strict=True) if goes_on]
            result.tools_s += time.monotonic() - before
            result.rounds += 1
    result.seconds = time.monotonic() - started
    result.generated_tokens = {row.question.id: row.generated for row in rows}
    result.response_tokens = {row.question.id: len(row.token_ids) - row.num_prompt for row in rows}
    return result


def _open(question: Question, env: Any, chat: ChatProtocol) -> _Row:
    text, _info = env.reset(seed=question.seed, options={"question": question})
    prompt = chat.prompt_ids(text)
    return _Row(question, env, prompt, len(prompt))


def _generate(engine: Engine, rows: Sequence[_Row], max_tokens: int, step: int) -> None:
    waiting = {}
    for row in rows:
        request_id = f"{engine.policy_version}/{row.question.id}/0/{step + 1}"
        waiting[request_id] = row
        engine.submit(GenerationRequest(request_id, list(row.token_ids), max_tokens))
    while waiting:
        for completion in engine.poll():
            row = waiting.pop(completion.request_id)
            row.completion = completion
            row.token_ids.extend(completion.token_ids)
            row.generated += len(completion.token_ids)


def _step(row: _Row, chat: ChatProtocol) -> bool:
    """Run the tool; returns whether the trajectory goes on."""
    assert row.completion is not None
    observation, _reward, terminated, truncated, _info = row.env.step(row.completion.text)
    if terminated or truncated:
        return False
    text = without_spill(render_observation(observation, chat.settings), row.completion.spill)
    row.token_ids.extend(chat.encode(text))
    return True
