"""The search tool: what a policy reads, wrong options, a Milvus that is away, and the tool inside an environment."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from buffer_helpers import wait_until

from rapo_rllib.corpus import search_tool
from rapo_rllib.corpus.collection import PassageCollection
from rapo_rllib.corpus.search_tool import CorpusSearch
from rapo_rllib.errors import RetrievalError, ToolError
from rapo_rllib.milvus.lite import handle
from rapo_rllib.milvus.lite.handle import NAMESPACE
from rapo_rllib.tools import Tool, make_tool, shared_tools

QUESTION = "Who portrayed Corliss Archer in the film Kiss and Tell?"


@pytest.fixture
def tool(corpus: PassageCollection):
    found = make_tool("search", uri=corpus.place.uri)
    assert isinstance(found, CorpusSearch) and isinstance(found, Tool)
    yield found
    found.close()


def corpus_text(corpus: PassageCollection, query: str) -> str:
    hits = [hit.passage for hit in corpus.search([query], 3)[0]]
    return "\n\n".join(f"[{i}] {p.title}\n{p.text}" for i, p in enumerate(hits, start=1))


def test_the_observation_is_a_numbered_list(tool: CorpusSearch, corpus: PassageCollection) -> None:
    result = tool.run(f"\n  {QUESTION} ")
    assert result.error is None
    assert result.text == corpus_text(corpus, QUESTION)
    assert tool.run(QUESTION + " " * 2000 + "Faust").text == corpus_text(corpus, f"{QUESTION} Faust")
    assert tool.run("a" * 1000 + QUESTION).text == tool.run("a" * 1000).text  # what follows is not read
    assert "[1] Kiss and Tell (1945 film)\nKiss and Tell is a 1945 American comedy film" in result.text


def test_long_passages_are_cut(corpus: PassageCollection) -> None:
    short = make_tool("search", uri=corpus.place.uri, top_k=2, max_chars=20, mode="dense")
    blocks = short.run(QUESTION).text.split("\n\n")
    assert len(blocks) == 2
    assert all(re.fullmatch(r"\[\d\] .+\n.{10,20} \.\.\.", block) for block in blocks)
    short.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("query", "text", "error"),
    [
        (" \n ", "(no query)", "empty"),
        ("zzyzx qwertz \ud800", "(no results)", "no_results"),
    ],
)
def test_a_bad_query_is_an_observation(corpus: PassageCollection, query: str, text: str, error: str) -> None:
    tool = make_tool("search", uri=corpus.place.uri, mode="bm25")
    result = tool.run(query)
    assert (result.text, result.error) == (text, error)
    tool.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, r"env_config\.tools: search option top_k = 0: must be a whole number, 1 or more"),
        ({"top_k": 16_385}, r"search option top_k = 16385: must be a whole number, 1 or more, at most 16384"),
        ({"max_chars": "9"}, r"search option max_chars = '9': must be a whole number"),
        ({"mode": "sparse"}, r"search option mode = 'sparse': must be one of dense, bm25, hybrid"),
        ({"uri": "corpus"}, r"search option uri: 'corpus' is neither a Milvus Lite path that ends in \.db nor a server"),
        ({"uri": "./none.db"}, r"there is no collection 'passages' at .*none\.db\. Make it: rllib corpus build FILE --uri"),
        ({"uri": "http://localhost:1"}, r"search option uri = 'http://localhost:1': Milvus at .* does not answer .*start the"),
        ({"collection": "gone"}, r"search option collection: there is no collection 'gone' at"),
        ({"topk": 3}, "search: options.topk': did you mean '.*options.top_k'"),
    ],
)
def test_wrong_options_are_named(corpus: PassageCollection, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_tool("search", **({"uri": corpus.place.uri} | options))


def test_an_unfinished_corpus_is_refused(corpus: PassageCollection) -> None:
    facts = corpus.facts()
    corpus.set_facts({**facts, "begun": ["/a.jsonl"]})
    with pytest.raises(ValueError, match=r"collection 'passages' at .* is not complete; run `rllib corpus build` again for /a"):
        make_tool("search", uri=corpus.place.uri)
    corpus.set_facts(facts)


def test_a_hundred_trajectories_at_once(corpus: PassageCollection, questions: list[dict]) -> None:
    tool = shared_tools({"name": "search", "options": {"uri": corpus.place.uri, "mode": "dense"}})[0]
    inner: PassageCollection = tool.tool.collection  # type: ignore[attr-defined]
    sizes: list[int] = []
    search = inner.search
    inner.search = lambda queries, *rest: sizes.append(len(queries)) or search(queries, *rest)  # type: ignore
    texts = [row["question"] for row in questions] * 8
    with ThreadPoolExecutor(len(texts)) as pool:
        results = list(pool.map(tool.run, texts))
    alone = {text: tool.run(text).text for text in set(texts[:2])}
    assert all(result.error is None for result in results)
    assert [result.text for result in results[:2]] == [alone[text] for text in texts[:2]]
    assert [result.text for result in results[:12]] == [result.text for result in results[12:24]]
    assert len(sizes) < 30 and max(sizes) > 4


def pid_of_owner(path: str) -> int:
    """The process of the actor that has a Lite path open."""
    import ray

    actor = ray.get_actor(path, namespace=NAMESPACE)
    return int(ray.get(actor.__ray_call__.remote(lambda owner: os.getpid())))


def test_an_owner_that_hangs_is_said(ray_session, corpus: PassageCollection, monkeypatch) -> None:
    monkeypatch.setattr(handle, "BUSY_S", 1.0)
    monkeypatch.setattr(search_tool, "TIMEOUT_S", 1.0)
    tool = make_tool("search", uri=corpus.place.uri, mode="bm25")
    before = tool.run(QUESTION)
    owner = pid_of_owner(corpus.milvus.uri)
    assert before.error is None
    os.kill(owner, signal.SIGSTOP)
    assert wait_until(lambda: psutil.Process(owner).status() == psutil.STATUS_STOPPED, 60)  # thread by thread
    result = tool.run(QUESTION)
    assert (result.text, result.error) == ("SearchError: the search service failed", "service")
    with suppress(ProcessLookupError):  # Ray may have ended it: nobody has a handle any more
        os.kill(owner, signal.SIGCONT)
    monkeypatch.undo()
    assert tool.run(QUESTION) == before
    tool.close()  # type: ignore[attr-defined]


def test_calls_in_a_row_without_an_answer_are_an_error(corpus: PassageCollection, monkeypatch) -> None:
    def away(*_: object) -> None:
        raise RetrievalError("Milvus at x does not answer")

    monkeypatch.setattr(search_tool, "MAX_FAILURES", 2)
    tool = make_tool("search", uri=corpus.place.uri)
    monkeypatch.setattr(PassageCollection, "search", away)
    assert tool.run(QUESTION).text == "SearchError: the search service failed"
    with pytest.raises(ToolError, match="tool search: 2 calls in a row were not answered: Milvus at x does not answer"):
        tool.run(QUESTION)
    tool.close()  # type: ignore[attr-defined]


def test_in_an_environment_the_gold_paragraph_comes_back(corpus: PassageCollection, questions_file: Path, questions) -> None:
    from rapo_rllib.envs.questions import Questions

    options = {"uri": corpus.place.uri, "top_k": 3}
    env = Questions({"dataset": str(questions_file), "tools": [{"name": "search", "options": options}], "scorer": "qa"})
    source = env.questions(env.env_config, "train")
    assert [(q.text, q.answer) for q in source] == [(row["question"].strip(), row["answer"]) for row in questions]
    gold = next(p for p in questions[0]["paragraphs"] if p["gold"] and p["title"] == "Shirley Temple")
    env.reset(options={"question": source[0]})
    observation, _, terminated, _, info = env.step(
        "<think>Who was she?</think><search>Shirley Temple actress and diplomat</search>"
    )
    assert not terminated
    assert (info["tool"], info["tool_error"]) == ("search", None)
    assert f"] {gold['title']}\n{gold['text']}" in observation
    _, reward, terminated, _, info = env.step("<answer>\\boxed{chief of protocol of the United States}</answer>")
    assert terminated
    assert reward == pytest.approx(2 * 3 / (3 + 6))  # F1: "chief of protocol" of "chief of protocol of united states"
    assert not info["correct"]
    env.close()
