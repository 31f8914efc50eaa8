"""A language model as judge, behind any endpoint that speaks OpenAI's chat completions.

answer -> equal as text to an accepted one? -> verdict known? -> prompt -> ``JsonService`` -> verdict -> Score
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rapo_rllib.errors import ServiceError
from rapo_rllib.rewards.once import Once
from rapo_rllib.rewards.score import WRONG, Episode, Score, Scorer, accepted_answers
from rapo_rllib.rewards.verdicts import DEFAULT_PROMPT, filled, verdict
from rapo_rllib.services.credentials import check_address, check_no_secret, check_variable, secret_of
from rapo_rllib.services.http_json import JsonService
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.types import Question

_WHERE = "env_config.scorer.options."
TIMEOUT_S = 30.0  # of one try: a judge that thinks writes some hundred tokens
ATTEMPTS = 3  # of one request, while the endpoint is busy or does not answer


@dataclass(frozen=True)
class JudgeOptions(Knobs):
    """Keys of ``env_config.scorer.options`` of a judge."""

    where: ClassVar[str] = _WHERE

    base_url: str = knob("", "with its version, for example http://127.0.0.1:8000/v1")
    model: str = knob("", "as the endpoint calls it")
    api_key_env: str | None = knob(None, "environment variable that holds the key; None: none is sent")
    prompt: str = knob(DEFAULT_PROMPT, "with {answer}, and {question}, {accepted} and {fence} as needed")
    max_tokens: int = knob(512, "of the reply, thoughts included", at_least=1)
    max_concurrent: int = knob(8, "requests at a time in one process", at_least=1)
    on_failure: str = knob("error", "error: the trajectory ends with an error; wrong; or the name of a scorer that takes over")
    extra: Mapping[str, Any] = knob(dict, "further fields of the request, for example {temperature: 0.5}")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("base_url", "model"):
            _require(bool(getattr(self, key)), key, getattr(self, key), "must be given")
        check_address(self.base_url, f"{_WHERE}base_url", "put a key into the environment variable that api_key_env names")
        _require(self.base_url.startswith(("http://", "https://")), "base_url", self.base_url, "must begin with http(s)://")
        _require("{answer}" in self.prompt, "prompt", self.prompt, "must contain {answer}")
        check_no_secret(self.extra, f"{_WHERE}extra", "put it into the environment variable that api_key_env names")
        if self.api_key_env is not None:
            check_variable(self.api_key_env, f"{_WHERE}api_key_env")
            known = bool(secret_of(self.api_key_env))
            _require(known, "api_key_env", self.api_key_env, "there is no such environment variable, or it is empty")


def _require(condition: bool, key: str, value: object, rule: str) -> None:
    if not condition:
        raise ValueError(f"{_WHERE}{key} = {value!r}: {rule}")


class LLMJudge:
    """Scores 1 or 0 by a model's verdict. Thread-safe; equal questions with equal answers are asked once.

    Args:
        options: where and what to ask.
        fallback: scores where the judge failed; None: the failure is raised.
    """

    def __init__(self, options: JudgeOptions, fallback: Scorer | None = None) -> None:
        self._prompt, self._fallback = options.prompt, fallback
        endpoint = _Endpoint(options)
        self._verdict = Once(endpoint.verdict)
        weakref.finalize(self, endpoint.service.close)

    def __call__(self, answer: str | None, question: Question, episode: Episode) -> Score:
        """1 if the judge finds the answer correct.

        Raises:
            ServiceError: it did not answer, or not with a verdict, and there is no fallback.
        """
        if answer is None or not answer.strip():
            return WRONG
        accepted = [gold for gold in accepted_answers(question) if gold]
        if answer.strip() in accepted:
            return Score(1.0, True)
        try:
            correct = self._verdict(filled(self._prompt, question.text, accepted, answer.strip()))
        except ServiceError as error:
            if self._fallback is None:
                raise
            score = self._fallback(answer, question, episode)
            return Score(score.value, score.correct, score.terms, failure=f"judge/{_kind(error)}")
        return Score(float(correct), correct)

    def __deepcopy__(self, memo: dict[int, Any]) -> LLMJudge:
        return self  # a trajectory that branches copies its environment; scorers are shared


class _Endpoint:
    """The address of the model, and how it is asked."""

    def __init__(self, options: JudgeOptions) -> None:
        self._options = options
        self.service = JsonService("judge", TIMEOUT_S, ATTEMPTS, 2 * TIMEOUT_S)
        self._slots = threading.BoundedSemaphore(options.max_concurrent)

    def verdict(self, prompt: str) -> bool:
        """Return what the model says to ``prompt``. Raises ``ServiceError``."""
        options = self._options
        body = {
            "model": options.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.0,  # a verdict is to be the same each time
            "max_tokens": options.max_tokens,
            **options.extra,
        }
        # read anew for every request: the key is kept nowhere
        key = secret_of(options.api_key_env)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        url = options.base_url.rstrip("/") + "/chat/completions"
        with self._slots:
            reply = _content(self.service.request("POST", url, json=body, headers=headers))
        found = verdict(reply)
        if found is None:
            raise ServiceError(f"judge gives no verdict: it ends with {reply[-200:]!r}", 200)
        return found


def _content(reply: Any) -> str:
    """The text of a chat completion."""
    try:
        content = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ServiceError("judge answers with something that is no chat completion", 200) from None
    return content if isinstance(content, str) else ""


def _kind(error: ServiceError) -> str:
    """In one word what was wrong, for counting."""
    if error.status is None:
        return "unreachable"
    return "unreadable" if error.status < 400 else f"status_{error.status}"
