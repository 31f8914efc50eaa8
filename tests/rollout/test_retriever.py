"""What the retriever answers: the chosen trace, the fallback, or a random one; too many failures end the training."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from rapo_rllib.errors import RetrievalError
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.types import FALLBACK, HistoryQuery, RetrievedTrace, StepTrace

POOL = [StepTrace(f"pool{i}", "q", "h", f"text {i}", 1.0, source="solver") for i in range(10)]
QUERIES = [HistoryQuery("What?", f"history {i}", "q1", asker=f"0/q1/{i}") for i in range(400)]


class Traces:
    """Answers every query with traces of these rewards; draws from ``POOL``."""

    def __init__(self, *rewards: float) -> None:
        self.hits = [RetrievedTrace(StepTrace(f"near{i}", "q", "h", "t", r), 0.9 - i / 10) for i, r in enumerate(rewards)]
        self.searched: list[HistoryQuery] = []
        self.drawn_for: list[HistoryQuery] = []

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        self.searched += queries
        return [self.hits[:top_k] for _ in queries]

    def random_traces(self, queries: Sequence[HistoryQuery], rngs: Sequence[random.Random]) -> list[StepTrace | None]:
        self.drawn_for += queries
        return [rng.choice(POOL) for rng in rngs]


def make(source: Traces, **options: object) -> Retriever:
    return Retriever(source, **{"selection": "nearest", "top_k": 3, **options})


def test_the_best_of_the_nearest_or_the_fallback() -> None:
    options = {"selection": "best_reward", "fallback_text": "Think for yourself."}
    (best,) = make(Traces(0.2, 1.0, 0.5), **options)(QUERIES[:1])
    assert best is not None and best.trace.id == "near1" and not best.noisy
    for source in (Traces(0.0, -1.0), Traces(0.0, 0.0, 0.0, 1.0), Traces()):  # the fourth is not looked at
        (answer,) = make(source, **options)(QUERIES[:1])
        assert answer is not None and answer.similarity == 0.0
        assert (answer.trace.id, answer.trace.source, answer.trace.text) == (FALLBACK, FALLBACK, "Think for yourself.")


def test_without_a_fallback_nothing_is_shown() -> None:
    assert make(Traces(0.0), selection="best_reward")(QUERIES[:2]) == [None, None]


@pytest.mark.parametrize(("noise", "low", "high"), [(0.0, 0, 0), (0.25, 70, 130), (1.0, 400, 400)])
def test_noise_replaces_its_share_by_random_traces(noise: float, low: int, high: int) -> None:
    source = Traces(1.0)
    answers = make(source, noise=noise)(QUERIES)
    noisy = [answer for answer in answers if answer.noisy]
    assert low <= len(noisy) <= high  # 0.25: expected 100, sd 8.7
    assert len(source.searched) == 400 - len(noisy)  # what is replaced is not searched for
    assert source.drawn_for == [query for query, answer in zip(QUERIES, answers, strict=True) if answer.noisy]
    assert all(answer.similarity == 0.0 and answer.trace in POOL for answer in noisy)
    assert all(answer.trace.id == "near0" for answer in answers if not answer.noisy)
    if noise:
        assert len({answer.trace.id for answer in noisy}) == 10


def test_noise_depends_on_seed_and_query_alone() -> None:
    together = make(Traces(1.0), noise=0.5, seed=3)(QUERIES[:60])
    alone = make(Traces(1.0), noise=0.5, seed=3)
    assert [alone([query])[0] for query in reversed(QUERIES[:60])] == together[::-1]
    assert make(Traces(1.0), noise=0.5, seed=4)(QUERIES[:60]) != together


def test_equal_histories_of_two_trajectories_have_coins_of_their_own() -> None:
    queries = [HistoryQuery("What?", "same", "q1", asker=str(i)) for i in range(50)]
    assert 10 < sum(answer.noisy for answer in make(Traces(1.0), noise=0.5)(queries)) < 40


def test_a_silent_buffer_is_told_of_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    class Comes(Traces):
        gone = True

        def random_traces(self, *asked: object) -> list[StepTrace | None]:
            if self.gone:
                raise RetrievalError("Milvus is gone")
            return super().random_traces(*asked)

    source = Comes(1.0)
    retriever = make(source, noise=1.0)
    for _ in range(3):
        with pytest.raises(RetrievalError, match="Milvus is gone"):
            retriever(QUERIES[:7])
    source.gone = False
    retriever(QUERIES[:7])
    retriever(QUERIES[:7])
    said = [record.message for record in caplog.records]
    assert said == [
        "the Step-Trace Buffer does not answer; trajectories go on on-policy until it does: Milvus is gone",
        "the Step-Trace Buffer answers again, after 0 s and 21 lost queries",
    ]
