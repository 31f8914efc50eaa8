"""An OpenAI-compatible endpoint as an engine: it writes one step at a time, as text.

    question, steps so far -> messages -> JsonService -> text of the next step, up to and including a closing tag
                                                          -> Completion in tokens of the policy, without logprobs

A step of the agent is an assistant's turn, and the tool's result is the user's turn after it; the next step is a new turn.
(Only some servers can continue a final assistant message; others begin a new one.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from rapo_rllib.errors import AgentError, RequestError, ServiceError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.rollout.call_threads import CallThreads
from rapo_rllib.rollout.engine import Completion, Failure, GenerationRequest
from rapo_rllib.services.credentials import check_address, check_no_secret, check_variable, secret_of
from rapo_rllib.services.http_json import JsonService

KEY_VARIABLE = "AGENT_API_KEY"
MAX_STOP_STRINGS = 4  # that OpenAI's own endpoint takes; at further stop strings the text is cut off here
ATTEMPTS, _PATIENCE_S = 8, 300.0  # tries of one request while the endpoint is busy or silent, and seconds for all tries
_HOPELESS = (401, 403, 404)  # no other request would be answered either
_SHOWN = 300  # characters of a failed request's answer
_MOMENT_S = 0.02  # seconds that ``poll`` waits for the endpoint: a tool's result may wait as long


@dataclass(frozen=True)
class EndpointOptions:
    """The address of the agent, and how it is asked."""

    address: str  # with its version, for example http://127.0.0.1:8000/v1
    model: str  # as the endpoint calls it
    key_variable: str = KEY_VARIABLE  # environment variable that holds the key; not set: none is sent
    timeout_s: float = 120.0  # of one try
    concurrency: int = 16  # requests at a time
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of the request; null leaves one of ours out

    def __post_init__(self) -> None:
        if self.key_variable:
            check_variable(self.key_variable, "--agent-key-env", KEY_VARIABLE)
        check_no_secret(self.extra, "--agent-extra", "put it into the environment variable that --agent-key-env names")
        check_address(self.address, "the agent", "put a key into the environment variable that --agent-key-env names")
        if not self.model:
            raise ValueError(f"{self.address}: how does the endpoint call its model? Write {self.address}#MODEL")


@dataclass(frozen=True)
class WrittenStep:
    """One step that the endpoint wrote."""

    text: str  # ends with the closing tag if it stopped at one
    finish: str  # stop (a closing tag), eos or length
    num_tokens: int | None  # as the endpoint counts; None: it does not say


class EndpointEngine:
    """Engine that asks the endpoint on threads, one for each request under way; all else runs on the caller's thread.

    Args:
        options: address of the endpoint, and how it is asked.
        chat: the job's protocol with the policy's tokenizer: budgets are counted in the policy's tokens, as the steps will be
            shown to the policy.
    """

    policy_version = 0

    def __init__(self, options: EndpointOptions, chat: ChatProtocol) -> None:
        self._options, self._chat = options, chat
        self._url = f"{options.address.rstrip('/')}/chat/completions"
        self._service = JsonService("agent", options.timeout_s, ATTEMPTS, _PATIENCE_S)
        self._threads = CallThreads(options.concurrency, "rapo-agent")
        self._running: dict[Future[WrittenStep], GenerationRequest] = {}
        self._done: SimpleQueue[Future[WrittenStep]] = SimpleQueue()

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or running."""
        return len(self._running)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; the endpoint is sent its question and its trajectory as messages."""
        future = self._threads.submit(self._written, self._body(request), request.stop)
        self._running[future] = request
        future.add_done_callback(self._done.put)

    def poll(self) -> list[Completion | Failure]:
        """Wait a moment for the endpoint; return the steps that it has written and the requests that it has refused.

        Raises:
            AgentError: the endpoint would refuse every request: wrong key, address or model.
        """
        found = []
        with suppress(Empty):
            found.append(self._done.get(timeout=_MOMENT_S))
            while True:
                found.append(self._done.get_nowait())
        return [self._ended(self._running.pop(future), future) for future in found if future in self._running]

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop these requests; a thread that waits for the endpoint is left to finish."""
        names = set(request_ids)
        forgotten = [future for future, request in self._running.items() if request.request_id in names]
        for future in reversed(forgotten):  # the last first: a thread freed by an earlier one would begin a later one
            del self._running[future]
            self._threads.abandon(future)

    def close(self) -> None:
        """Stop the threads and close the connections; a thread that still waits for the endpoint is left behind."""
        self._threads.shutdown(grace_s=0.5)
        self._service.close()

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._options.model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stop": list(request.stop[:MAX_STOP_STRINGS]),
            "seed": request.seed,
            "messages": self._messages(request),
            **self._options.extra,
        }
        return {name: value for name, value in body.items() if value is not None}

    def _messages(self, request: GenerationRequest) -> list[Any]:
        assert request.trajectory is not None
        messages: list[Any] = [*self._chat.messages(request.trajectory.question_text, request.question)]
        for step in request.trajectory.steps:
            shown = render_observation(step.observation, self._chat.settings).strip()
            messages += [{"role": "assistant", "content": step.as_text}, {"role": "user", "content": shown}]
        return messages

    def _written(self, body: Mapping[str, Any], stop: Sequence[str]) -> WrittenStep:
        options, key = self._options, secret_of(self._options.key_variable)  # read for every request: the key is kept nowhere
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            return written_step(self._service.request("POST", self._url, json=body, headers=headers), stop)
        except ServiceError as error:
            said = error.body.decode(errors="replace")[:_SHOWN]
            message = f"{error}{': ' if said else ''}{said.replace(key, '***') if key else said}"
            if error.status in _HOPELESS:
                raise AgentError(
                    f"{self._url} with model {options.model!r}: {message}. Correct the address or the model's name, or the key "
                    f"in the environment variable {options.key_variable}"
                ) from error
            raise RequestError(message) from error

    def _ended(self, request: GenerationRequest, future: Future[WrittenStep]) -> Completion | Failure:
        try:
            written = future.result()
        except RequestError as error:
            return Failure(request.request_id, error)
        tokens = self._chat.encode(written.text)
        if written.finish == "eos" or written.text.endswith(f"</{self._chat.settings.answer_tag}>"):
            tokens += self._chat.end_ids[:1]
        return Completion(
            request.request_id,
            tokens,
            logprobs=None,
            entropies=None,
            text=written.text,
            spill="",
            finish=written.finish,
            policy_version=self.policy_version,
            num_sampled=written.num_tokens,
        )


def written_step(reply: Any, stop: Sequence[str]) -> WrittenStep:
    """Read a step from an answer of the endpoint.

    Endpoints leave out the stop string that ended a text; here it is added. vLLM names it; else it closes the open tag.
    A text that went on beyond a closing tag (the endpoint ignored it, or it was not among the four sent) is cut after it.

    Raises:
        ServiceError: the answer is no completion.
    """
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ServiceError("agent answers with something that is no completion", 200) from None
    if isinstance(text, list):  # in parts, as some endpoints write it
        text = "".join(str(part.get("text", "")) for part in text if isinstance(part, Mapping))
    text = text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""  # no lone surrogates
    usage = reply.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    num_tokens = counted if isinstance(counted, int) else None
    ends = [text.index(tag) + len(tag) for tag in stop if tag in text]
    if ends:
        return WrittenStep(text[: min(ends)], "stop", num_tokens)
    if choice.get("finish_reason") == "length":
        return WrittenStep(text, "length", num_tokens)
    stopped_at = choice["stop_reason"] if "stop_reason" in choice else _left_open(text, stop)
    if isinstance(stopped_at, str) and stopped_at in stop:
        return WrittenStep(text + stopped_at, "stop", num_tokens)
    return WrittenStep(text, "eos", num_tokens)


def _left_open(text: str, stop: Sequence[str]) -> str | None:
    """Find the last opened tag of those that end a step, and return its closing form; ``text`` closes none of them."""
    opened = [(text.rfind(f"<{tag[2:]}"), tag) for tag in stop]
    position, tag = max(opened, default=(-1, ""))
    return tag if position >= 0 else None
