"""A rollout whose Milvus server is lost in its middle ends on-policy and says so; once it is back, retrieval goes on.

What a server that is killed and started again does to a buffer: buffer/test_buffer_failures.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from milvus_server import MilvusServer
from relay import Relay
from scripted import ByteTokenizer, CalculatorEnv, ScriptedEngine, calls, scripted_loop
from test_loop import QUESTIONS as ASKED

from rapo_rllib.agents.agent import OffPolicyAgent
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus import connection
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import RetrievalFailures, Retriever
from rapo_rllib.settings import BufferSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import HistoryQuery, RetrievedTrace, StepTrace

QUESTIONS = ASKED[:2]
TRACES = [StepTrace(f"t{i}", question.text, "", "<think>Once more.</think>", 1.0) for i, question in enumerate(QUESTIONS)]
NUM_HYBRID, NUM_CALLS = 3, 3  # of 4 in a group; tool calls of a trajectory, after each of which it asks for a trace


class Interrupted:
    """The buffer; before the search number ``at`` something happens."""

    def __init__(self, buffer: StepTraceBuffer, at: int, happens: Callable[[], None]) -> None:
        self.buffer, self._at, self._happens = buffer, at, happens
        self.sizes: list[int] = []

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        self.sizes.append(len(queries))
        if len(self.sizes) == self._at:
            self._happens()
        return self.buffer.retrieve(queries, top_k)


def make_loop(source: Interrupted) -> RolloutLoop:
    budgets = {"num_hybrid": NUM_HYBRID, "max_tool_calls": NUM_CALLS, "max_response_tokens": 2000}
    return scripted_loop(ScriptedEngine(calls(NUM_CALLS)), source=source, **budgets)


class Gone:
    """A buffer whose server is down."""

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        raise RetrievalError("Milvus does not answer")


def test_an_evaluation_without_its_buffer_stops_and_counts_what_failed() -> None:
    failures = RetrievalFailures("http://host:19530", "run the same command again", patience_s=None)
    protocol = ProtocolSettings(system_prompt="")
    agent = OffPolicyAgent(
        ScriptedEngine(calls(NUM_CALLS)),
        ChatProtocol(ByteTokenizer(), protocol),
        EnvPool(CalculatorEnv, protocol.answer_tag),
        RolloutSettings(group_size=4, max_tool_calls=NUM_CALLS, max_response_tokens=2000, max_prompt_tokens=400),
        at_once=1,
        seed=1,
        retriever=Retriever(Gone(), selection="nearest", top_k=1),
        retrieval_prob=1.0,
        on_stats=lambda stats: failures.add([stats]),
    )
    answers = agent.answers(QUESTIONS, lambda: None)
    assert [attempt.failed_retrievals for attempt in next(answers).attempts] == [NUM_CALLS] * 4
    with pytest.raises(RetrievalError, match=r"24 of 24 retrievals failed, .* answers, then run the same command again"):
        next(answers)
    agent.close()


@pytest.mark.milvus
def test_a_server_lost_in_a_rollout(
    milvus_server: MilvusServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_CONNECT_S", 0.2)  # that each search looks for a lost server, behind the first
    relay = Relay(int(milvus_server.uri.rsplit(":", 1)[1]))
    buffer = StepTraceBuffer(BufferSettings(uri=f"http://127.0.0.1:{relay.port}", collection="rollout", timeout_s=2.0))
    buffer.create()
    buffer.insert(TRACES)
    buffer.prepare()
    source = Interrupted(buffer, 2, relay.cut)
    loop = make_loop(source)
    num_queries = len(QUESTIONS) * NUM_HYBRID * NUM_CALLS

    groups = loop.run(QUESTIONS, retrieval_prob=1.0)
    assert all(group.rewards == [1.0] * 4 for group in groups)
    assert {t.end for group in groups for t in group.trajectories} == {"answer"}
    answered = source.sizes[0]
    assert loop.stats.retrieval_queries == sum(source.sizes) == num_queries
    assert loop.stats.retrieval_failures == num_queries - answered > 0
    retrievals = [retrieval for group in groups for t in group.trajectories for retrieval in t.retrievals]
    assert len(retrievals) == answered and {retrieval.trace_id for retrieval in retrievals} <= {"t0", "t1"}
    (said,) = [record.message for record in caplog.records]  # once, however many searches failed
    assert said.startswith("the Step-Trace Buffer does not answer; trajectories go on on-policy until it does: Milvus at http")
    minute = [0.0]
    gone, stays_away = (RetrievalFailures(buffer.uri, clock=lambda: 60 * minute[0]) for _ in range(2))
    for minute[0] in range(5):
        gone.add([loop.stats])
        stays_away.add([loop.stats])
    for minute[0] in range(5, 15):
        stays_away.add([loop.stats])
    minute[0] = 15
    with pytest.raises(
        RetrievalError, match=rf"of {16 * num_queries} retrievals failed, more than 50%: .*{buffer.uri}' answers"
    ):
        stays_away.add([loop.stats])

    relay.restore()
    deadline = time.monotonic() + 60
    loop.run(QUESTIONS, retrieval_prob=1.0)
    while loop.stats.retrieval_failures and time.monotonic() < deadline:
        groups = loop.run(QUESTIONS, retrieval_prob=1.0)
    assert loop.stats.retrieval_failures == 0 and loop.stats.retrieval_queries == num_queries
    assert "the Step-Trace Buffer answers again, after" in caplog.records[-1].message and len(caplog.records) == 2
    for minute[0] in range(5, 40):
        gone.add([loop.stats])  # a server that was gone for five minutes, from the start of a training, has cost five minutes
    loop.close()
    buffer.drop()
    buffer.close()
    relay.cut()
