"""A language model behind an address as off-policy agent: one thread per trajectory, which waits for answers and tools.

    reset -> the endpoint writes a step -> env step -> the endpoint goes on -> ... -> Attempt

It has a loop of its own. ``rollout/loop.py`` lives on token ids, logprobs and weight versions of an engine; an endpoint has
another tokenizer and gives none of these, so an engine made of it would hand invented numbers to code that trusts them.
Environments, tags, tools and rewards are the same.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt, OnAttempt
from rapo_rllib.agents.endpoint import AgentEndpoint, WrittenStep
from rapo_rllib.errors import EnvError, ServiceError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.env_answers import EnvResult
from rapo_rllib.rollout.env_calls import EnvPool, overdue_s, reset_env, step_env, truncate_env
from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import Question

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.25  # for calls of environments that are overdue


@dataclass
class Episode:
    """One trajectory while it grows; what ``EnvPool`` lends to."""

    question: Question
    sample: int
    rng: random.Random | None  # of its requests' seeds; None: none are sent
    env: Any = None
    stop: tuple[str, ...] = ()
    env_started: float | None = None
    env_failed: bool = False
    tries: int = 0  # it has one
    env_steps: int | None = None  # nobody counts
    text: str = ""  # of the question, as the environment asks it
    steps: list[tuple[str, str]] = field(default_factory=list)  # text, rendered observation
    used: int = 0  # response tokens, in tokens of the policy
    num_tokens: int = 0  # generated
    reward: float = 0.0
    started: float = 0.0
    num_tool_calls: int = 0
    correct: bool = False
    format_ok: bool = False
    score_failure: str = ""

    def take_outcome(self, info: Mapping[str, Any]) -> None:
        """Note what the environment says at the end."""
        self.correct = bool(info.get("correct", self.reward > 0))
        self.format_ok = bool(info.get("format_ok", True))
        self.score_failure = str(info.get("score_failure", ""))

    def attempt(self, end: str, error: str = "", agent_failed: bool = False) -> Attempt:
        """Return the attempt that came of it."""
        return Attempt(
            tuple(text + shown for text, shown in self.steps),
            self.reward,
            end,
            error,
            self.num_tokens,
            agent_failed,
            correct=self.correct,
            format_ok=self.format_ok,
            num_tool_calls=self.num_tool_calls,
            score_failure=self.score_failure,
            seconds=time.monotonic() - self.started,
        )


class EndpointAgent:
    """Solves questions by an endpoint.

    Args:
        endpoint: writes.
        chat: the job's protocol with the policy's tokenizer: budgets are counted in its tokens, for the policy is shown the
            steps.
        envs: a pool of the job's environments.
        settings: budgets of the job; ``group_size`` is the number of attempts.
        concurrency: trajectories at a time.
        seed: of the requests, for endpoints that take one; None: none is sent.
    """

    def __init__(
        self,
        endpoint: AgentEndpoint,
        chat: ChatProtocol,
        envs: EnvPool,
        settings: RolloutSettings,
        concurrency: int = 16,
        seed: int | None = None,
    ) -> None:
        self._endpoint, self._chat, self._envs, self._settings = endpoint, chat, envs, settings
        self._concurrency, self._seed = concurrency, seed
        self._threads = CallThreads(concurrency, "rapo-agent")
        self._tokenizer_lock = threading.Lock()  # a fast tokenizer must not be used by two threads at once
        self._running: dict[Future[Attempt], Episode] = {}

    def answers(self, questions: Iterable[Question], on_attempt: OnAttempt) -> Iterator[AnsweredQuestion]:
        """Every question with its attempts, as they are finished: others are under way meanwhile.

        Raises:
            AgentError: the endpoint refuses every request.
        """
        left, attempts = iter(questions), dict[str, dict[int, Attempt]]()
        while True:
            while len(self._running) < self._concurrency and (question := next(left, None)) is not None:
                self._begin(question)
                attempts[question.id] = {}
            if not self._running:
                return
            wait(self._running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for episode, attempt in self._ended():
                on_attempt()
                of_question = attempts[episode.question.id]
                of_question[episode.sample] = attempt
                if len(of_question) == self._settings.group_size:
                    del attempts[episode.question.id]
                    asked = replace(episode.question, text=episode.text or episode.question.text)
                    in_order = sorted(of_question.items())  # what is kept of equal ones does not depend on who was faster
                    yield AnsweredQuestion(asked, tuple(one for _, one in in_order))

    def close(self) -> None:
        """Stop the threads; one that still waits for the endpoint is left behind."""
        self._threads.shutdown(grace_s=0.5)
        self._envs.close()
        self._endpoint.close()

    def _begin(self, question: Question) -> None:
        for sample in range(self._settings.group_size):
            rng = None if self._seed is None else random.Random(f"{self._seed}/{question.id}/{sample}")
            episode = Episode(question, sample, rng)
            self._running[self._threads.submit(self._solve, episode)] = episode

    def _ended(self) -> list[tuple[Episode, Attempt]]:
        found = []
        limit = self._settings.step_timeout_s
        for future, episode in list(self._running.items()):
            if future.done():
                found.append((self._running.pop(future), future.result()))
            elif overdue_s(episode, limit):
                self._threads.abandon(future)
                episode.env = None  # still in use by a thread that may never return
                error = f"the environment has not returned in time (step_timeout_s = {limit})"
                found.append((self._running.pop(future), episode.attempt("error", error)))
        return found

    def _solve(self, episode: Episode) -> Attempt:
        try:
            attempt = self._solved(episode)
        except EnvError as error:
            attempt = episode.attempt("error", str(error))
        except ServiceError as error:
            attempt = episode.attempt("error", str(error), agent_failed=True)
        if attempt.error:
            logger.warning("question %s, step %d: %s", episode.question.id, len(episode.steps), attempt.error)
        self._envs.release(episode)
        return attempt

    def _solved(self, episode: Episode) -> Attempt:
        settings = self._settings
        episode.started = time.monotonic()
        episode.text = reset_env(episode, self._envs)
        with self._tokenizer_lock:
            length = len(self._chat.prompt_ids(episode.text, episode.question))
        if length > settings.max_prompt_tokens:
            raise EnvError(f"prompt of {length} tokens is over max_prompt_tokens = {settings.max_prompt_tokens}")
        while (room := settings.max_response_tokens - episode.used) > 0:
            written = self._write(episode, min(room, settings.max_step_tokens or room))
            result = step_env(episode, written.text, written.finish != "length")
            episode.reward += result.reward
            episode.num_tool_calls += "tool" in result.info
            if result.terminated or result.truncated:
                episode.steps.append((written.text, ""))
                episode.take_outcome(result.info)
                return episode.attempt(self._end(written, result))
            shown = render_observation(result.observation, self._chat.settings)
            episode.steps.append((written.text, shown))
            episode.used += self._count(written.text) + self._count(shown)
            if written.finish == "length" or (settings.max_steps is not None and len(episode.steps) >= settings.max_steps):
                break
        judged = truncate_env(episode)
        episode.reward += judged.reward
        episode.take_outcome(judged.info)
        return episode.attempt("length")

    def _write(self, episode: Episode, max_tokens: int) -> WrittenStep:
        seed = None if episode.rng is None else episode.rng.getrandbits(31)
        written = self._endpoint.write(
            episode.text,
            episode.steps,
            episode.stop,
            max_tokens=max_tokens,
            temperature=self._settings.temperature,
            seed=seed,
            given=episode.question,
        )
        episode.num_tokens += self._count(written.text) if written.num_tokens is None else written.num_tokens
        return written

    def _end(self, written: WrittenStep, result: EnvResult) -> str:
        if named := result.info.get("end"):
            return str(named)
        if f"</{self._chat.settings.answer_tag}>" in written.text:
            return "answer"
        return "length" if written.finish == "length" else "eos"

    def _count(self, text: str) -> int:
        with self._tokenizer_lock:
            return len(self._chat.encode(text))
