import gc
import pickle
import socket
import time

import pytest
from local_service import Reply, in_turn, local_service

from rapo_rllib.errors import ServiceError
from rapo_rllib.services.http_json import JsonService


def test_an_answer() -> None:
    with local_service(in_turn(Reply({"a": "ü"}))) as server:
        service = pickle.loads(pickle.dumps(JsonService("it")))
        assert service.request("POST", server.url + "/x", params={"q": "1 2"}, json={"b": 1}, headers={"x-key": "k"}) == {
            "a": "ü"
        }
        assert service.request("GET", server.url) == {"a": "ü"}
    first, second = server.requests
    assert (first.method, first.path, first.query, first.json) == ("POST", "/x", {"q": ["1 2"]}, {"b": 1})
    assert (first.headers["x-key"], second.method) == ("k", "GET")


def test_connections_of_a_service_that_nobody_closes_end_with_it() -> None:
    with local_service(in_turn(Reply({}))) as server:
        service = JsonService("it")
        service.request("GET", server.url)
        client = service._client
        assert client is not None and not client.is_closed
        del service
        gc.collect()
        assert client.is_closed


@pytest.mark.parametrize(
    "passing",
    [
        Reply(status=429, headers={"retry-after": "0"}),
        Reply(status=500),
        Reply(status=503),
        Reply(b"<html>"),
        Reply(b"\xff\xfe"),
        Reply({}, delay_s=3.0),
        Reply(b"{}", headers={"content-length": "99"}),
    ],
)
def test_what_passes_is_tried_again(passing: Reply) -> None:
    with local_service(in_turn(passing, Reply([1]))) as server:
        late = passing.delay_s or "content-length" in passing.headers
        assert JsonService("it", timeout_s=2.0 if late else 20.0).request("GET", server.url) == [1]
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_final(status: int) -> None:
    refused = pytest.raises(ServiceError, match=f"it answers with status {status}")
    with local_service(in_turn(Reply({"error": "no"}, status))) as server, refused as caught:
        JsonService("it").request("GET", server.url, params={"key": "secret"})
    assert len(server.requests) == 1
    assert caught.value.status == status
    assert "secret" not in repr(caught.value)


def test_all_tries_fail() -> None:
    refused = pytest.raises(ServiceError, match="it answers with status 502")
    with local_service(in_turn(Reply(status=502))) as server, refused:
        JsonService("it", attempts=3).request("GET", server.url)
    assert len(server.requests) == 3


def test_the_wait_is_what_the_service_asks_for() -> None:
    with local_service(in_turn(Reply(status=429, headers={"retry-after": "1"}), Reply([]))) as server:
        started = time.monotonic()
        JsonService("it").request("GET", server.url)
    assert time.monotonic() - started >= 1


def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ServiceError, match=r"it does not answer \(ConnectError\)"):
        JsonService("it", attempts=2).request("GET", f"http://127.0.0.1:{port}/?key=secret")


def test_an_endless_answer_is_refused() -> None:
    refused = pytest.raises(ServiceError, match="more than 16 MiB")
    with local_service(in_turn(Reply(b" " * (17 * 2**20)))) as server, refused:
        JsonService("it").request("GET", server.url)


def test_an_answer_that_drips_is_given_up() -> None:
    dripping = Reply(b"1" * 100, drip_s=0.1)  # a number, in the end
    with local_service(in_turn(dripping, Reply([1]))) as server:
        assert JsonService("it", timeout_s=2.0).request("GET", server.url) == [1]


def test_a_wait_beyond_the_patience_is_not_begun() -> None:
    refused = pytest.raises(ServiceError, match="it answers with status 429")
    with local_service(in_turn(Reply(b"later", 429, {"retry-after": "3600"}))) as server, refused as caught:
        JsonService("it", patience_s=5).request("GET", server.url)
    assert len(server.requests) == 1
    assert (caught.value.retry_after_s, caught.value.body) == (3600, b"later")


def test_before_every_try() -> None:
    left: list[float] = []
    with local_service(in_turn(Reply(status=503, headers={"x-wait": "1"}), Reply([]))) as server:
        service = JsonService("it", patience_s=900, before_try=left.append, wait_asked=lambda headers: float(headers["x-wait"]))
        service.request("GET", server.url)
    assert len(server.requests) == 2
    assert 800 < left[0] <= 900 and left[1] <= left[0] - 1


def no_turn(_: float) -> None:
    raise ServiceError("no turn", status=429)


def test_no_turn_is_no_try_in_another_process_too() -> None:
    service = pickle.loads(pickle.dumps(JsonService("it", before_try=no_turn)))
    with local_service(in_turn(Reply([]))) as server, pytest.raises(ServiceError, match="no turn"):
        service.request("GET", server.url)
    assert server.requests == []


@pytest.mark.parametrize(("reply", "timed_out"), [(Reply({}, delay_s=0.4), True), (Reply(status=500), False)])
def test_who_was_too_slow(reply: Reply, timed_out: bool) -> None:
    with local_service(in_turn(reply)) as server, pytest.raises(ServiceError) as caught:
        JsonService("it", timeout_s=0.2 if timed_out else 20.0, attempts=1).request("GET", server.url)
    assert caught.value.timed_out is timed_out
