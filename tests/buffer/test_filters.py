"""Filters: the mask over the rows in memory and a server's own expression allow the same traces."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rapo_rllib.buffer.keys import trace_id
from rapo_rllib.buffer.shown_answers import shows_answer
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.settings import BufferSettings, TraceFilter
from rapo_rllib.types import HistoryQuery, StepTrace

TRACES = [
    StepTrace(
        trace_id(question, "", f"step {i}", source), question, "", f"step {i}", reward, source=source, weight_version=version
    )
    for i, (question, reward, source, version) in enumerate(
        [
            ("How many?", 1.0, "gpt", -1),
            ("How many?", 0.2, "gpt", -1),
            ("How many?", 1.0, "policy", 3),
            ('A "quoted" \\ one\nof two lines?', 1.0, "human", -1),
            ("Wie viele Äpfel?", 0.5, "policy", 9),
        ]
    )
]
QUERY = HistoryQuery("How many?", "")
CASES = [
    (TraceFilter(), QUERY, "01234"),
    (TraceFilter(question="other"), QUERY, "34"),
    (TraceFilter(question="same"), QUERY, "012"),
    (TraceFilter(question="same"), HistoryQuery('A "quoted" \\ one\nof two lines?', ""), "3"),
    (TraceFilter(question="other"), HistoryQuery("Wie viele Äpfel?", ""), "0123"),
    (TraceFilter(question="same"), HistoryQuery("Unheard of", ""), ""),
]


@pytest.fixture(scope="module", params=["lite", pytest.param("server", marks=pytest.mark.milvus)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BufferSettings]:
    """Settings of a buffer with ``TRACES``: it searches in memory, or is a server's."""
    lite = request.param == "lite"
    uri = str(tmp_path_factory.mktemp("filters") / "steps.db") if lite else request.getfixturevalue("milvus_server").uri
    buffer = StepTraceBuffer(BufferSettings(uri=uri, collection="filters", timeout_s=30.0))
    buffer.create()
    buffer.insert(TRACES)
    assert buffer.count() == len(TRACES)
    yield buffer.settings
    buffer.drop()
    buffer.close()


def drawn(buffer: StepTraceBuffer, query: HistoryQuery) -> str:
    """The numbers of the traces that are drawn of 200."""
    found = buffer.random_traces([query] * 200, [random.Random(seed) for seed in range(200)])
    return "".join(sorted({trace.text[-1] for trace in found if trace is not None}))


@pytest.mark.parametrize(("chosen", "query", "allowed"), CASES)
def test_what_a_filter_allows_is_found_and_drawn(
    place: BufferSettings, chosen: TraceFilter, query: HistoryQuery, allowed: str
) -> None:
    buffer = StepTraceBuffer(replace(place, filter=chosen, top_k=5))
    (hits,) = buffer.retrieve([query])
    assert "".join(sorted(hit.trace.text[-1] for hit in hits)) == drawn(buffer, query) == allowed
    buffer.close()


def test_noise_draws_no_reward_of_0_where_best_reward_selects(make_buffer) -> None:
    for selection, rewards in (("best_reward", {0.5, 1.0}), ("nearest", {-1.0, 0.0, 0.5, 1.0})):
        buffer = make_buffer(selection=selection)
        buffer.create()
        buffer.insert(replace(TRACES[0], id=str(reward), reward=reward) for reward in (-1.0, 0.0, 0.5, 1.0))
        found = buffer.random_traces([QUERY] * 100, [random.Random(seed) for seed in range(100)])
        assert {trace.reward for trace in found if trace is not None} == rewards


def test_each_query_has_its_own_filter_and_its_own_chance(place: BufferSettings) -> None:
    buffer = StepTraceBuffer(replace(place, filter=TraceFilter(question="other"), top_k=5))
    queries = [HistoryQuery(text, "") for text in ("How many?", "Wie viele Äpfel?")] * 50
    assert ["".join(sorted(hit.trace.text[-1] for hit in hits)) for hits in buffer.retrieve(queries[:3])] == [
        "34",
        "0123",
        "34",
    ]
    found = buffer.random_traces(queries, [random.Random(seed) for seed in range(100)])
    assert all(trace is not None and trace.question != query.question for trace, query in zip(found, queries, strict=True))
    assert [buffer.random_traces([queries[i]], [random.Random(i)])[0] for i in range(20)] == found[:20]
    buffer.close()


HIDING = [((), "01234"), (("3",), "0124"), (("Step", "7"), ""), (("01.0", "4"), "023"), (("tep",), "01234")]


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_answers_are_hidden(place: BufferSettings, top_k: int) -> None:
    """However near they are, the next ones come in their place; in a search, and where noise draws."""
    settings = replace(place, top_k=top_k)
    buffer, hiding = StepTraceBuffer(settings), StepTraceBuffer(replace(settings, filter=TraceFilter(hide_answers=True)))
    queries = [replace(QUERY, answers=answers) for answers, _ in HIDING]
    everything, found = buffer.retrieve(queries, top_k=5), hiding.retrieve(queries)
    for hits, nearest, (_, allowed) in zip(found, everything, HIDING, strict=True):
        assert {hit.trace.text[-1] for hit in hits} <= set(allowed)
        kept = [hit.similarity for hit in nearest if hit.trace.text[-1] in allowed]  # a server gives equally near ones anyhow
        assert [hit.similarity for hit in hits] == pytest.approx(kept[:top_k], abs=1e-5)
    assert [drawn(hiding, query) for query in queries] == [allowed for _, allowed in HIDING]
    both = hiding.random_traces(queries, [random.Random(seed) for seed in range(len(queries))])
    assert both == [hiding.random_traces([query], [random.Random(seed)])[0] for seed, query in enumerate(queries)]
    buffer.close()
    hiding.close()


@pytest.mark.parametrize(
    ("text", "answers", "shown"),
    [
        ("<python>3 + 5</python>\n<result>\n8\n</result>", ["8"], True),
        ("<python>3 + 5</python>\n<result>\n18\n</result>", ["8"], False),
        ("it is 8.0, no more", ["8"], True),
        ("it is 8.5", ["8"], False),
        ("it is 1,250 in all", ["1250"], True),
        ("it is $1250", ["1,250"], True),
        ("the points (3,4)", ["4"], True),  # commas between the items of a list
        ("3,4", ["34"], False),
        ("x in [3,4]", ["3,4"], True),
        ("1,0052", ["1005"], False),
        ("12 - 8", ["-8"], True),  # whether that is a sign cannot be told
        ("one half: .5", ["0.5"], True),
        ("The Eiffel\nTower, Paris", ["eiffel tower"], True),
        ("The Eiffel, a Tower", ["eiffel tower"], False),
        ("Parisian", ["Paris", "Lutetia"], False),
        ("In Lutetia!", ["Paris", "Lutetia"], True),
        ("\\boxed{\\frac{1}{2}}", ["\\frac{1}{2}"], True),
        ("whatever", ["", "?"], False),
    ],
)
def test_what_shows_an_answer(text: str, answers: list[str], shown: bool) -> None:
    assert shows_answer(text, answers) is shown


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"question": "mine"}, "filter.question"),
        ({"hide_answers": "always"}, "filter.hide_answers"),
    ],
)
def test_wrong_values(wrong: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TraceFilter(**wrong)
