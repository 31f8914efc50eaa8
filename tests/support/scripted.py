"""A scripted engine, a byte tokenizer, a calculator environment, and loops over them: the loop's tests need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from rapo_rllib.errors import BusyError, EngineError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.protocol.make import make_protocol
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, StepTrace

TRACE = StepTrace(id="t1", question="", history="", text="<python>9</python>", reward=1.0, source="expert")
END = 0  # the byte that ends a turn, where a tokenizer has such a token


class ByteTokenizer:
    """One token per byte; no chat template.

    Args:
        eos_token_id: ``END``; None: no token ends a turn.
    """

    chat_template = None

    def __init__(self, eos_token_id: int | None = None) -> None:
        self.eos_token_id = eos_token_id

    def __len__(self) -> int:
        return 256

    def encode(self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = (token for token in token_ids if not skip_special_tokens or token != self.eos_token_id)
        return bytes(kept).decode(errors="replace")


Script = Callable[[str], str]  # everything so far -> the next step; "\udcff" writes the byte ff


class ScriptedEngine:
    """Writes what the script says; each request takes ``latency(request)`` polls."""

    def __init__(self, script: Script, latency: Callable[[GenerationRequest], int] = lambda request: 1) -> None:
        self.script = script
        self.latency = latency
        self.policy_version = 0
        self.requests: list[GenerationRequest] = []
        self.fail_at_poll: int | None = None
        self.polls = 0
        self.rambles = False  # what the script writes behind an answer is all, and no EOS
        self.changes_at_poll: dict[int, int] = {}  # poll -> version of the weights from then on
        self._running: dict[str, tuple[GenerationRequest, int]] = {}
        self._written_by: dict[str, list[int]] = {}  # version at each poll of a request

    @property
    def num_unfinished(self) -> int:
        return len(self._running)

    def submit(self, request: GenerationRequest) -> None:
        assert request.request_id not in self._running
        self.requests.append(request)
        self._running[request.request_id] = (request, self.latency(request))

    def poll(self) -> list[Completion]:
        self.polls += 1
        if self.polls == self.fail_at_poll:
            raise EngineError("the engine broke")
        self.policy_version = self.changes_at_poll.get(self.polls - 1, self.policy_version)
        done = []
        for name, (request, left) in list(self._running.items()):
            self._running[name] = (request, left - 1)
            self._written_by.setdefault(name, []).append(self.policy_version)
            if left <= 1:
                del self._running[name]
                done.append(self._complete(request))
        return done

    def _complete(self, request: GenerationRequest) -> Completion:
        wanted = self.script(bytes(request.token_ids).decode(errors="replace"))
        finish, spill = "eos", ""
        for stop in request.stop:
            end = wanted.find(stop)
            if end >= 0:
                wanted, spill, finish = wanted[: end + len(stop)], wanted[end + len(stop) :], "stop"
        token_ids = list((wanted + spill).encode("utf-8", "surrogateescape"))
        if finish == "eos" or len(token_ids) < request.max_tokens:
            token_ids += self._last_token(request, wanted, finish)
        wanted = wanted.encode("utf-8", "surrogateescape").decode(errors="replace")
        if len(token_ids) > request.max_tokens:
            token_ids, finish, spill = token_ids[: request.max_tokens], "length", ""
            wanted = bytes(token_ids).decode(errors="replace")
        entropy = 1.0 if request.temperature else 0.0
        n, written_by = len(token_ids), self._written_by.pop(request.request_id)
        versions = [written_by[token * len(written_by) // n] for token in range(n)]  # as many tokens in each poll
        return Completion(
            request.request_id,
            token_ids,
            [-0.5] * n,
            [entropy] * n,
            wanted,
            spill,
            finish,
            self.policy_version,
            versions=versions,
        )

    def _last_token(self, request: GenerationRequest, wanted: str, finish: str) -> list[int]:
        """EOS where it ends the turn, or is the one token behind the answer; as a model with a token for that does."""
        final = finish == "eos" or (request.final_stop is not None and wanted.endswith(request.final_stop))
        return list(request.end_ids[:1]) if final and not self.rambles else []

    def close(self) -> None:
        """Nothing to free."""

    def abort(self, request_ids: Sequence[str]) -> None:
        for name in request_ids:
            self._running.pop(name, None)
            self._written_by.pop(name, None)


class CalculatorEnv(gymnasium.Env):
    """``<python>expr</python>`` is evaluated; ``<answer>x</answer>`` ends with reward 1 if x is the question's answer."""

    tool_tags = ("python",)

    def __init__(self, on_call: Callable[[str], None] = lambda text: None) -> None:
        self.on_call = on_call

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict]:
        assert options is not None
        self.question = options["question"]
        return self.question.text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        self.on_call(action)
        if "</python>" in action:
            expression = action.split("<python>")[1].split("</python>")[0]
            return str(eval(expression, {"__builtins__": {}})), 0.0, False, False, {"tool": "python", "tool_seconds": 0.0}
        correct = f"<answer>{self.question.answer}</answer>" in action
        return "", float(correct), True, False, {"correct": correct, "format_ok": "</answer>" in action}


def solve(so_far: str) -> str:
    """Call the tool once for the last question asked, then answer with its result."""
    question = so_far.rsplit("What is ", 1)[1]
    if "<result>" not in question:
        return f"<python>{question.split('?')[0]}</python>"
    result = question.rsplit("<result>", 1)[1].split("</result>")[0].strip()
    return f"<answer>{result}</answer>"


def calls(count: int) -> Callable[[str], str]:
    """Call the tool ``count`` times before the answer."""

    def script(so_far: str) -> str:
        question = so_far.rsplit("What is ", 1)[1]
        return f"<python>{question.split('?')[0]}</python>" if question.count("<result>") < count else solve(so_far)

    return script


class OneTrace:
    """Answers every query with the same trace, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[HistoryQuery]] = []

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        self.batches.append(list(queries))
        return [[RetrievedTrace(TRACE, 0.9)] for _ in queries]


class TellingPool(EnvPool):
    """Tells an environment whom it serves."""

    def acquire(self, borrower: Any) -> None:
        super().acquire(borrower)
        borrower.env.borrower = borrower


def scripted_loop(
    engine: Any,
    make_env: Callable[[], Any] = CalculatorEnv,
    source: Any = None,
    *,
    pool: type[EnvPool] = EnvPool,
    eos: int | None = None,
    seed: int | None = 0,
    **settings: Any,
) -> RolloutLoop:
    """A rollout loop that writes bytes without a system prompt; ``source`` is searched for the nearest step trace."""
    defaults = {"group_size": 4, "num_hybrid": 0, "max_response_tokens": 400, "max_prompt_tokens": 400}
    return RolloutLoop(
        engine,
        ChatProtocol(ByteTokenizer(eos), ProtocolSettings(system_prompt="")),
        pool(make_env, "answer"),
        RolloutSettings(**{**defaults, **settings}),
        None if source is None else Retriever(source, selection="nearest", top_k=1),
        seed,
    )


def env_loop(
    make_env: Callable[[], Any], engine: Any, tokenizer: Any = None, format: str = "tags", **settings: Any
) -> RolloutLoop:
    """A rollout loop over an environment of ours, in bytes unless there is a tokenizer."""
    protocol = ProtocolSettings(format=format, system_prompt="", examples=())
    chat = make_protocol(tokenizer or ByteTokenizer(END), protocol, make_env(), None)
    defaults = {"group_size": 3, "num_hybrid": 0, "max_prompt_tokens": 4000, "max_response_tokens": 4000}
    return RolloutLoop(engine, chat, EnvPool(make_env, "answer"), RolloutSettings(**{**defaults, **settings}))


def reset_when_free(env: Any, question: Question) -> None:
    """Begin an episode once the sessions that it needs are free."""
    while True:
        try:
            env.reset(options={"question": question})
            return
        except BusyError as busy:
            busy.free.result(60)
