"""An OpenAI-compatible endpoint that writes one step at a time.

    question, steps so far -> messages or prompt -> JsonService -> text of the next step, up to and including a closing tag

Two ways to go on after a tool's result, because endpoints differ:

    chat         ``/chat/completions``. Every endpoint has it. What the agent wrote is an assistant's turn, a tool's result
                 the user's turn behind it; the next step is a new turn. (That a final assistant message is continued is an
                 extension of some servers, which others take for an order to begin anew.)
    completions  ``/completions``, where it is served. The prompt is made by the chat template of a tokenizer that is here,
                 and steps and results stand behind it in one assistant turn, as in training. Exact, but the tokenizer must
                 be the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rapo_rllib.errors import AgentError, ServiceError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.services.credentials import check_address, check_variable, secret_of
from rapo_rllib.services.http_json import JsonService
from rapo_rllib.types import Question

APIS = ("chat", "completions")
MAX_STOP_STRINGS = 4  # that OpenAI's own endpoint takes; what others would have stopped is cut off here
_HOPELESS = (401, 403, 404)  # no other request would be answered either
_SHOWN = 300  # characters of an error's answer


@dataclass(frozen=True)
class EndpointOptions:
    """The address of the agent, and how it is asked."""

    address: str  # with its version, for example http://127.0.0.1:8000/v1
    model: str  # as the endpoint calls it
    api: str = "chat"
    key_variable: str = "AGENT_API_KEY"  # environment variable that holds the key; not set: none is sent
    timeout_s: float = 120.0  # of one try
    attempts: int = 8  # tries of one request, while the endpoint is busy or does not answer
    patience_s: float = 300.0  # no further try begins after so long
    named_by: str = "--agent, --agent-model"  # what the user gave, for messages
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of the request; null leaves one of ours out

    def __post_init__(self) -> None:
        if self.api not in APIS:
            raise ValueError(f"--agent-api must be one of {', '.join(APIS)}, got {self.api!r}")
        if self.key_variable:
            check_variable(self.key_variable, "--agent-key-env", "AGENT_API_KEY")
        check_address(self.address, self.named_by, "put a key into the environment variable that --agent-key-env names")
        if not self.model:
            raise ValueError(f"--agent-model is missing: how does the endpoint {self.address} call the model?")


@dataclass(frozen=True)
class WrittenStep:
    """One step that the endpoint wrote."""

    text: str  # ends with the closing tag where it stopped
    finish: str  # stop (a closing tag), eos or length
    num_tokens: int | None  # as the endpoint counts; None: it does not say


class AgentEndpoint:
    """Asks the endpoint. Thread-safe.

    Args:
        options: where and how.
        chat: makes messages; for ``completions`` with the tokenizer of the endpoint's model.
    """

    def __init__(self, options: EndpointOptions, chat: ChatProtocol) -> None:
        self._options, self._chat = options, chat
        self._service = JsonService("agent", options.timeout_s, options.attempts, options.patience_s)

    def write(
        self,
        question: str,
        steps: Sequence[tuple[str, str]],
        stop: Sequence[str],
        *,
        max_tokens: int,
        temperature: float,
        seed: int | None = None,
        given: Question | None = None,
    ) -> WrittenStep:
        """The next step.

        Args:
            question: its text.
            steps: what the agent wrote so far, each with the rendered observation that followed.
            stop: closing tags that end a step.
            max_tokens: of the step.
            temperature: of the sampling.
            seed: of this request; None: none is sent.
            given: may bring turns before the question.

        Raises:
            AgentError: the endpoint would refuse every request: wrong key, address or model.
            ServiceError: this one was refused, or not answered after all tries.
        """
        body: dict[str, Any] = {
            "model": self._options.model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stop": list(stop[:MAX_STOP_STRINGS]),
            **({} if seed is None else {"seed": seed}),
            **self._said_so_far(question, steps, given),
            **self._options.extra,
        }
        body = {name: value for name, value in body.items() if value is not None}
        path = "chat/completions" if self._options.api == "chat" else "completions"
        return written_step(self._asked(f"{self._options.address.rstrip('/')}/{path}", body), stop)

    def close(self) -> None:
        """Close the connections."""
        self._service.close()

    def _said_so_far(self, question: str, steps: Sequence[tuple[str, str]], given: Question | None) -> dict[str, Any]:
        if self._options.api == "completions":
            return {"prompt": self._chat.prompt_text(question, given) + "".join(text + shown for text, shown in steps)}
        messages = self._chat.messages(question, given)
        for text, shown in steps:
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": shown.strip()}]
        return {"messages": messages}

    def _asked(self, url: str, body: Mapping[str, Any]) -> Any:
        key = secret_of(self._options.key_variable)  # read anew for every request: it is kept nowhere
        try:
            return self._service.request("POST", url, json=body, headers={"authorization": f"Bearer {key}"} if key else {})
        except ServiceError as error:
            said = error.body.decode(errors="replace")[:_SHOWN]
            message = f"{error}{': ' if said else ''}{said.replace(key, '***') if key else said}"
            if error.status in _HOPELESS:
                raise AgentError(
                    f"{url} with model {self._options.model!r}: {message}. Correct {self._options.named_by}, or the key "
                    f"in the environment variable {self._options.key_variable}"
                ) from error
            raise ServiceError(message, error.status) from error


def written_step(reply: Any, stop: Sequence[str]) -> WrittenStep:
    """Read an answer of the endpoint.

    Endpoints leave the string they stopped at out. vLLM names it; elsewhere it is the closing form of the tag left open.
    A text that went on beyond a closing tag (the endpoint ignored it, or it was not among the four sent) is cut there.

    Raises:
        ServiceError: it is no completion.
    """
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        raise ServiceError("agent answers with something that is no completion", 200) from None
    text = text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""  # no lone surrogates
    usage = reply.get("usage")
    num_tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
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
    """The closing form of the tag that was opened last, of those that end a step; none of them is closed in ``text``."""
    opened = [(text.rfind(f"<{tag[2:]}"), tag) for tag in stop]
    position, tag = max(opened, default=(-1, ""))
    return tag if position >= 0 else None
