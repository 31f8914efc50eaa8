"""An embedder behind an address: a real server that embeds with MiniLM, and all that can go wrong with one."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from buffer_helpers import experts
from local_service import Reply, Request, Service, local_service

from rapo_rllib.buffer.build import ensure_built
from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.buffer.maker import adopted
from rapo_rllib.embedding.endpoint import EndpointEncoder
from rapo_rllib.embedding.local import TextEncoder, _load_once
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

MINILM = TextEncoder("all-minilm-l6-v2", key="server")


def embedded(request: Request, scale: float = 3.0) -> Reply:
    """What a server of the protocol answers: in any order, of any length."""
    assert request.path == "/v1/embeddings" and request.json["encoding_format"] == "float"
    vectors = MINILM.encode(request.json["input"]) * scale
    data = [{"object": "embedding", "index": i, "embedding": v.tolist()} for i, v in enumerate(vectors)]
    return Reply({"object": "list", "model": request.json["model"], "data": data[::-1], "usage": {"prompt_tokens": 1}})


def name_of(server: Service, model: str = "minilm") -> str:
    return f"{server.url}/v1#{model}"


@contextmanager
def served(answer: Callable[[Request], Reply] = embedded) -> Iterator[Service]:
    with local_service(answer) as server:
        yield server


def vectors(*rows: list[float], first: int = 0) -> Reply:
    return Reply({"data": [{"index": i, "embedding": row} for i, row in enumerate(rows, start=first)]})


def in_turn(*replies: Reply) -> Callable[[Request], Reply]:
    """These replies first, then a vector of width 3."""
    left = list(replies)
    return lambda request: left.pop(0) if left else vectors([3.0, 0.0, 4.0])


def test_an_endpoint_embeds_as_the_model_behind_it():
    pairs = [(f"How many apples has person {i}?", f"<python>{i} + 5</python>" * (60 if i < 2 else 1)) for i in range(70)]
    with served() as server:
        embedder = pickle.loads(pickle.dumps(Embedder(name_of(server))))
        vectors = embedder.encode(pairs)
        assert embedder.encode([]).shape == (0, 384)
    assert vectors.dtype == np.float32 and vectors.shape == (70, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    here = Embedder("all-minilm-l6-v2").encode(pairs)  # cut by the same tokenizer at the same place
    assert float((vectors * here).sum(axis=1).min()) > 0.999
    assert [len(request.json["input"]) for request in server.requests] == [1, 64, 6]
    assert {request.json["model"] for request in server.requests} == {"minilm"}


def test_the_key_comes_from_the_environment_and_is_kept_nowhere(monkeypatch):
    monkeypatch.delenv("EMBEDDER_API_KEY", raising=False)
    with served(in_turn()) as server:
        embedder = Embedder(name_of(server))
        embedder.encode([("q", "")])
        monkeypatch.setenv("EMBEDDER_API_KEY", "very-secret")
        embedder.encode([("q", "")])
        assert b"very-secret" not in pickle.dumps(embedder)
    assert "authorization" not in server.requests[0].headers
    assert server.requests[-1].headers["authorization"] == "Bearer very-secret"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply({"error": "no"}, 401), r"status 401; does it want a key in EMBEDDER_API_KEY\?"),
        (Reply(status=400), "status 400"),
        *(
            (reply, "does not answer 1 texts by as many embeddings")
            for reply in (
                Reply({"data": [{"index": 0}]}),
                Reply([]),
                vectors(),
                vectors([1.0, 2.0], first=1),
                Reply(b'{"data": [{"index": 0, "embedding": [NaN, 1]}]}'),
                vectors([0.0, 0.0]),
            )
        ),
    ],
)
def test_what_does_not_pass_is_a_retrieval_error(reply, message):
    with served(lambda _: reply) as server, pytest.raises(RetrievalError, match=message):
        EndpointEncoder(name_of(server), key="step_trace_buffer.embedder").encode(["a"])


def test_vectors_of_another_width_later_are_refused():
    with served(in_turn(vectors([1.0, 2.0]))) as server, pytest.raises(RetrievalError, match="width 3; before, it was 2"):
        EndpointEncoder(name_of(server), key="e").encode(["a"])


def test_a_buffer_by_an_endpoint_survives_its_failures(make_buffer):
    broken = []
    with served(lambda request: Reply(status=400) if broken else embedded(request)) as server:
        buffer = make_buffer(embedder=name_of(server))
        assert ensure_built(buffer, lambda: experts(5)) == 10
        query = HistoryQuery("Ann has 3 coins and gets 6 more. How many coins?", "")
        before = buffer.retrieve([query])[0][0]
        broken.append(True)
        with pytest.raises(RetrievalError, match="status 400"):  # the rollout counts it and goes on
            buffer.retrieve([query])
        broken.clear()
        assert buffer.retrieve([query])[0][0] == before
        stored = buffer.note("embedder")
    assert json.loads(stored["fingerprint"])["endpoint_model"] == "minilm"
    assert len(stored["probe"]) == 384


def turned(request: Request) -> Reply:
    """Another model under the same name: its axes are permuted."""
    reply = embedded(request)
    for item in reply.body["data"]:
        item["embedding"] = item["embedding"][::-1]
    return reply


def test_another_model_behind_the_same_name_is_refused(make_buffer):
    with served() as server:
        ensure_built(make_buffer(embedder=name_of(server)), lambda: experts(2))
    with served(lambda request: embedded(request, scale=0.5)) as moved:  # another host, another length
        assert make_buffer(embedder=name_of(moved)).retrieve([HistoryQuery("Ann has 0 apples", "")])[0]
    with served(turned) as server, pytest.raises(ValueError, match=r"the vector of a fixed text: a cosine of -?0\.\d+ between"):
        make_buffer(embedder=name_of(server)).prepare()
    with served() as server, pytest.raises(ValueError, match="endpoint_model: 'minilm' there, 'other' here"):
        make_buffer(embedder=name_of(server, "other")).prepare()


def test_a_mismatch_names_what_differs(make_buffer):
    ensure_built(make_buffer(), lambda: experts(2))
    other = make_buffer(pooling="last_token", key_recipe="last_characters")
    with pytest.raises(
        ValueError, match=r"embedded by 'all-minilm-l6-v2', .*\(pooling: 'mean' there, 'last_token' here; recipe: "
    ):
        other.prepare()
    with (
        served() as server,
        pytest.raises(ValueError, match=r"endpoint_model: None there, 'minilm' here; .*weights: '\w+' there"),
    ):
        make_buffer(embedder=name_of(server)).prepare()


def test_a_folder_that_pools_otherwise_is_refused(make_buffer, minilm, tmp_path):
    folder = shutil.copytree(minilm, tmp_path / "model")
    ensure_built(make_buffer(embedder=str(folder)), lambda: experts(2))
    pooling = next(folder.glob("*_Pooling/config.json"))
    rules = json.loads(pooling.read_text())
    pooling.write_text(json.dumps(rules | {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}))
    _load_once.cache_clear()  # as a process that starts now
    changed = make_buffer(embedder=str(folder))
    with pytest.raises(ValueError, match="the vector of a fixed text: a cosine of"):
        changed.prepare()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedder": "http://127.0.0.1:1/v1"}, r"embedder = 'http://127.0.0.1:1/v1': an endpoint is named by its address and"),
        ({"embedder": "https://#m"}, "an endpoint is named by its address"),
        ({"embedder": "http://h/v1#m", "pooling": "last_token"}, r"pooling = 'last_token': the endpoint 'http://h/v1#m' pools"),
    ],
)
def test_what_does_not_belong_together_is_refused(make_buffer, settings, message):
    with pytest.raises(ValueError, match=message):
        make_buffer(**settings)


def test_commands_find_the_endpoint_of_a_collection_by_themselves(make_buffer):
    with served() as server:
        buffer = make_buffer(embedder=name_of(server))
        ensure_built(buffer, lambda: experts(2))
        assert adopted(BufferSettings(uri=buffer.uri)).embedder == name_of(server)
