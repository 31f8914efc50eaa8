"""The rollout loop against a scripted engine: budgets, hybrid policy, faults, and that nobody waits for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scripted import TRACE, CalculatorEnv, OneTrace, ScriptedEngine, calls, scripted_loop, solve

from rapo_rllib.errors import EngineError
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, TokenKind

QUESTIONS = [Question(id=f"q{i}", text=f"What is {i} + 1?", answer=str(i + 1)) for i in range(3)]


def make_loop(
    script: Callable[[str], str] = solve,
    source: Any = None,
    make_env: Callable[[], Any] = CalculatorEnv,
    latency: Callable[[Any], int] = lambda request: 1,
    **settings: Any,
) -> RolloutLoop:
    return scripted_loop(ScriptedEngine(script, latency), make_env, source, **{"num_hybrid": 2, **settings})


def test_token_kinds_partition_the_response() -> None:
    loop = make_loop(source=OneTrace())
    for group in loop.run(QUESTIONS, retrieval_prob=1.0):
        for t in group.trajectories:
            assert sum(t.num_tokens(kind) for kind in TokenKind) == len(t.token_ids) == len(t.logprobs) == len(t.entropies)
            assert bytes(t.token_ids).decode() == t.text
            for part in (*t.steps, *t.retrievals):  # one byte a token: places in the text are places in the tokens
                assert t.text[part.text_start :].encode() == bytes(t.token_ids[part.start :])
            assert all(lp == 0.0 for lp, kind in zip(t.logprobs, t.kinds, strict=True) if kind != TokenKind.POLICY)


HYBRID = [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "hybrid", "retrievals"),
    [
        ({"retrieval_prob": 1.0}, HYBRID, [0, 0, 1, 1]),
        ({"retrieval_prob": 0.0}, HYBRID, [0] * 4),
        ({"retrieval_prob": 1.0, "greedy": True, "group_size": 1}, [False], [0]),
    ],
    ids=["always", "never", "greedy"],
)
def test_only_the_last_n_hybrid_of_a_group_retrieve(options: dict[str, Any], hybrid: list[bool], retrievals: list[int]) -> None:
    loop = make_loop(source=OneTrace())
    for group in loop.run(QUESTIONS, **options):
        assert [t.hybrid for t in group.trajectories] == hybrid
        assert [len(t.retrievals) for t in group.trajectories] == retrievals
        assert [t.retrieved_share > 0 for t in group.trajectories] == [count > 0 for count in retrievals]
    assert {request.temperature for request in loop.engine.requests} == {0.0 if "greedy" in options else 1.0}


def test_a_retrieval_sits_between_two_generated_steps() -> None:
    loop = make_loop(source=OneTrace())
    trajectory = loop.run(QUESTIONS[:1], retrieval_prob=1.0)[0].trajectories[-1]
    retrieval = trajectory.retrievals[0]
    assert retrieval.after_step == 0 and len(trajectory.steps) == 2
    assert trajectory.steps[0].stop <= retrieval.start < retrieval.stop <= trajectory.steps[1].start
    assert trajectory.kinds[retrieval.start : retrieval.stop] == [TokenKind.RETRIEVED] * (retrieval.stop - retrieval.start)
    assert "<retrieve>\n<python>9</python>\n</retrieve>" in trajectory.text


def test_the_query_after_a_retrieval() -> None:
    """All steps and results in order, as keys in the buffer have them."""
    source = OneTrace()

    def three_calls(so_far: str) -> str:
        done = so_far.rsplit("What is ", 1)[1].count("<result>")
        return f"<python>{done} + 5</python>" if done < 3 else solve(so_far)

    settings = {"group_size": 1, "num_hybrid": 1, "max_response_tokens": 900}
    (group,) = make_loop(three_calls, source, **settings).run(QUESTIONS[:1], retrieval_prob=1.0)
    (trajectory,) = group.trajectories
    assert [retrieval.after_step for retrieval in trajectory.retrievals] == [0, 1, 2]
    assert trajectory.text.count("<retrieve>\n<python>9</python>\n</retrieve>") == 3
    steps = [f"<python>{call} + 5</python>\n<result>\n{call + 5}\n</result>\n" for call in range(3)]
    queries = [query for batch in source.batches for query in batch]
    assert [query.history for query in queries] == [
        "<python>9</python>\n".join(steps[: count + 1]).strip() for count in range(3)
    ]
    asked = {(query.question, query.question_id, query.answers, query.asker) for query in queries}
    assert asked == {("What is 0 + 1?", "q0", ("1",), "0/q0/0")}


def test_a_fallback_is_no_step_of_the_history() -> None:
    class Nothing(OneTrace):
        def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
            self.batches.append(list(queries))
            return [[] for _ in queries]

    source = Nothing()
    loop = make_loop(calls(2), source, group_size=1, num_hybrid=1)
    loop.retriever = Retriever(source, selection="nearest", top_k=1, fallback_text="Think for yourself.")
    (group,) = loop.run(QUESTIONS[:1], retrieval_prob=1.0)
    assert group.trajectories[0].text.count("Think for yourself.") == 2
    assert not any("Think" in query.history for batch in source.batches for query in batch)


def test_histories_that_wait_together_are_searched_together() -> None:
    source = OneTrace()
    make_loop(source=source, group_size=8, num_hybrid=8, tool_workers=8).run(QUESTIONS, retrieval_prob=1.0)
    assert sum(map(len, source.batches)) == 24
    assert len(source.batches) < 24


def test_the_spill_of_a_tag_is_left_out_of_the_observation() -> None:
    loop = make_loop(lambda so_far: solve(so_far) + ("<" if "<result>" not in so_far.rsplit("What", 1)[1] else ""))
    trajectory = loop.run(QUESTIONS[:1])[0].trajectories[0]
    assert trajectory.text.startswith("<python>0 + 1</python><result>\n1\n</result>\n")
    assert bytes(trajectory.token_ids).decode() == trajectory.text


def test_a_trace_over_the_budget_is_skipped_and_counted() -> None:
    loop = make_loop(source=OneTrace(), max_response_tokens=90)
    group = loop.run(QUESTIONS[:1], retrieval_prob=1.0)[0]
    assert not any(t.retrievals for t in group.trajectories)
    assert loop.stats.retrieval_skipped == 2
    assert {t.end for t in group.trajectories} == {"answer"}


def test_nobody_waits_for_a_slow_tool() -> None:
    """The trajectory with a slow tool is the last to end; all others are done before its tool returns."""
    ended: dict[str, float] = {}
    calls = iter(range(100))

    def on_call(text: str) -> None:
        if next(calls) == 0:
            time.sleep(0.6)
        if "answer" in text:
            ended[threading.current_thread().name + str(len(ended))] = time.monotonic()

    started = time.monotonic()
    make_loop(make_env=lambda: CalculatorEnv(on_call), tool_workers=4).run(QUESTIONS)
    times = sorted(t - started for t in ended.values())
    assert len(times) == 12 and times[-2] < 0.5 < times[-1]


def test_weights_that_change_under_a_trajectory_are_an_error() -> None:
    loop = make_loop(latency=lambda request: 3)
    original = loop.engine.poll

    def poll() -> Any:
        loop.engine.policy_version += 1
        return original()

    loop.engine.poll = poll
    with pytest.raises(EngineError, match="weights changed from under"):
        loop.run(QUESTIONS)


def test_a_prompt_over_the_budget_is_an_error_of_its_trajectories() -> None:
    long = Question(id="long", text="What is " + "1 + " * 200 + "1?", answer="201")
    groups = make_loop(max_prompt_tokens=100).run([QUESTIONS[0], long])
    assert {t.end for t in groups[0].trajectories} == {"answer"}
    assert {t.end for t in groups[1].trajectories} == {"error"}
    assert "max_prompt_tokens = 100" in groups[1].trajectories[0].error


def test_coins_do_not_depend_on_timing() -> None:
    def retrieved(latency: Callable[[Any], int]) -> list[bool]:
        loop = make_loop(source=OneTrace(), latency=latency, group_size=16, num_hybrid=16)
        return [bool(t.retrievals) for g in loop.run(QUESTIONS, retrieval_prob=0.5) for t in g.trajectories]

    even, uneven = retrieved(lambda r: 1), retrieved(lambda r: 1 + len(r.request_id) % 5)
    assert even == uneven and 10 < sum(even) < 38


class Sometimes:
    """Answers right at once where it is asked for the ``first`` time; else calls, and answers right behind a step trace."""

    def __init__(self, first: int) -> None:
        self.first, self.begun = first, 0

    def __call__(self, so_far: str) -> str:
        if TRACE.text in so_far:
            return "<answer>1</answer>"
        if "<result>" in so_far:
            return "<answer>0</answer>"
        self.begun += 1
        return "<answer>1</answer>" if self.begun == self.first else "<python>0 + 1</python>"


@pytest.mark.parametrize(("first", "num_hybrid"), [(1, 0), (5, 0), (99, 3)])
def test_only_who_failed_is_helped(first: int, num_hybrid: int) -> None:
    """Five on-policy trajectories begin; the last three of the group are hybrid where none of them is right."""
    loop = make_loop(Sometimes(first), source=OneTrace(), group_size=8, num_hybrid=3, hybrid_groups="failed")
    (group,) = loop.run([Question("q", "What is 0 + 1?", "1")], retrieval_prob=1.0)
    assert [t.hybrid for t in group.trajectories] == [False] * (8 - num_hybrid) + [True] * num_hybrid
    assert [bool(t.retrievals) for t in group.trajectories] == [t.hybrid for t in group.trajectories]
    assert all(t.correct for t in group.trajectories if t.retrievals)
    assert loop.stats.refilled == 0


class HeldBack(ScriptedEngine):
    """Does not end the first step of question 0 before a hybrid trajectory of question 1 has begun."""

    def submit(self, request: Any) -> None:
        super().submit(request)
        if "/q0/0/" in request.request_id:
            self._running[request.request_id] = (request, 10**9)
        if "/q1/fresh2/" in request.request_id:
            self._running |= {name: (held, 1) for name, (held, left) in self._running.items() if left > 10**6}


def test_groups_that_wait_for_help_do_not_wait_for_each_other() -> None:
    loop = make_loop(source=OneTrace(), num_hybrid=2, hybrid_groups="failed")
    loop.engine = HeldBack(solve)
    asked = [Question(f"q{number}", f"What is {number} + 1?", "never") for number in range(3)]
    groups = loop.run(asked, retrieval_prob=1.0)
    assert all([t.hybrid for t in group.trajectories] == [False, False, True, True] for group in groups)


def test_a_group_that_could_be_all_hybrid_begins_whole() -> None:
    loop = make_loop(source=OneTrace(), num_hybrid=2, hybrid_groups="failed")
    (group,) = loop.run([Question("q", "What is 1 + 1?", "2")], retrieval_prob=1.0, group_size=2)
    assert len(group.trajectories) == 2
