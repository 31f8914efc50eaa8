"""Results and turns on disk, shared by objects and processes; a damaged folder harms nobody."""

import math
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import diskcache
import pytest
from local_service import Reply, local_service
from provider_answers import OBSERVATION, TAVILY

from rapo_rllib.web_search.providers import Hit
from rapo_rllib.web_search.store import JSONTextDisk, SearchStore
from rapo_rllib.web_search.tool import WebSearch

Make = Callable[..., WebSearch]

FOUND_IT = Reply(TAVILY)
FOUND = [Hit("title", "https://example.org", "snippet ü \ud800")]


def test_a_second_object_asks_nobody(tmp_path: Path, web_search: Make) -> None:
    with local_service(lambda _: Reply(TAVILY)) as server:
        first, second = (web_search(server.url, cache=str(tmp_path / "new" / "cache"), top_k=2) for _ in range(2))
        assert first.run("Loire").text == second.run(" Loire  ").text == OBSERVATION
        assert len(server.requests) == 1
        assert web_search(server.url, cache=str(tmp_path / "new" / "cache"), top_k=1).run("Loire").error is None
        assert web_search(server.url + "/v2", cache=str(tmp_path / "new" / "cache"), top_k=2).run("Loire")
        assert first.run("loire").error is None
        assert len(server.requests) == 4  # another number, address or query is another search


IN_A_PROCESS = """
import sys
from rapo_rllib.web_search.tool import WebSearch
tool = WebSearch("tavily", base_url=sys.argv[1], cache=sys.argv[2], top_k=2, rate_per_s=float(sys.argv[3]))
for query in sys.argv[4:]:
    print(tool.run(query).text)
"""


def in_a_process(*arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IN_A_PROCESS, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def test_results_grow_old(tmp_path: Path, web_search: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with local_service(lambda _: Reply(TAVILY)) as server:
        tool = web_search(server.url, cache=str(tmp_path))
        tool.run("x")
        for days, num_requests in ((0, 1), (29, 1), (31, 2)):
            later = time.time() + days * 86400
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda later=later: later)
                tool.run("x")
            assert len(server.requests) == num_requests


def test_nothing_found_is_kept_too(tmp_path: Path, web_search: Make) -> None:
    with local_service(lambda _: Reply({"results": []})) as server:
        assert [web_search(server.url, cache=str(tmp_path)).run("x").error for _ in range(2)] == ["no_results"] * 2
    assert len(server.requests) == 1


def test_what_was_found_comes_back(tmp_path: Path) -> None:
    store = SearchStore(tmp_path)
    assert store.get("key") is None
    store.put("key", FOUND)
    assert SearchStore(tmp_path).get("key") == FOUND
    large = [Hit(f"title {os.urandom(500).hex()}", f"https://example.org/{n}", "x") for n in range(100)]
    store.put("large", large)  # in a file of its own
    assert store.get("large") == large
    assert list(tmp_path.glob("**/*.val"))


def test_without_a_folder_nothing_is_kept() -> None:
    store = SearchStore(None)
    store.put("key", FOUND)
    assert store.get("key") is None


def damage_database(folder: Path) -> None:
    for file in folder.glob("cache.db*"):
        file.write_bytes(b"this is no database" * 500)


def damage_row(folder: Path) -> None:
    with sqlite3.connect(folder / "cache.db") as database:
        assert database.execute("UPDATE Cache SET value = x'00ff' WHERE value IS NOT NULL").rowcount > 0


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path(os.environ["BOMB"]).touch, ()


def poison(folder: Path) -> None:
    """A row that diskcache's own disks would unpickle."""
    with sqlite3.connect(folder / "cache.db") as database:
        assert database.execute("UPDATE Cache SET mode = 4, value = ?", (pickle.dumps(Bomb()),)).rowcount > 0


@pytest.mark.parametrize("damage", [damage_database, damage_row, poison])
def test_a_damaged_cache_is_a_warning(
    damage: Callable[[Path], None],
    tmp_path: Path,
    web_search: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, bomb = tmp_path / "cache", tmp_path / "exploded"
    monkeypatch.setenv("BOMB", str(bomb))
    with local_service(lambda _: Reply(TAVILY)) as server:
        old = web_search(server.url, cache=str(folder), top_k=2)
        old.run("x")
        damage(folder)
        new = web_search(server.url, cache=str(folder), top_k=2, rate_per_s=1000)
        for tool in (new, old):
            assert tool.run("x").text == OBSERVATION
    assert f"trouble with the cache {folder}" in caplog.text
    assert not bomb.exists()
    again = 3 if damage is damage_database else 2  # elsewhere the new result takes the damaged one's place
    assert len(server.requests) == again


@pytest.fixture
def clock_that_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are told as seconds from now: what passes between two calls would count."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.mark.usefixtures("clock_that_stands")
def test_a_damaged_cache_that_was_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SearchStore(tmp_path)
    store.put("key", FOUND)
    damage_database(tmp_path)
    assert store.get("key") is None
    store.put("key", FOUND)
    assert [store.take_turn("queue of this test", 1, 9) for _ in range(2)] == [0, pytest.approx(1)]
    assert caplog.text.count("trouble with the cache") == 1


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"web_search option cache = '.*file/x': Not a directory"):
        SearchStore(tmp_path / "file" / "x")


@pytest.mark.usefixtures("clock_that_stands")
@pytest.mark.parametrize("on_disk", [True, False])
def test_turns(on_disk: bool, tmp_path: Path) -> None:
    stores = [SearchStore(tmp_path if on_disk else None) for _ in range(2)]
    queue = f"queue {on_disk}"
    turns = [stores[n % 2].take_turn(queue, 1, 3.5) for n in range(5)]
    assert turns[:4] == pytest.approx([0, 1, 2, 3])
    assert turns[4] == math.inf  # after 4 s; not taken
    assert stores[0].take_turn(queue, 1, 5) == pytest.approx(4)
    assert stores[0].take_turn(f"another {queue}", 1, 5) == 0


@pytest.mark.parametrize("kept", ["soon", None, 1e12, -5, float("inf")])
def test_a_turn_that_cannot_be_is_forgotten(kept: Any, tmp_path: Path) -> None:
    with diskcache.Cache(str(tmp_path), disk=JSONTextDisk) as cache:
        cache["queue"] = kept
    store = SearchStore(tmp_path)
    assert store.take_turn("queue", 10, 1) == 0


def seconds_of(num_requests: int, run: Callable[[str], None], reply: Reply = FOUND_IT) -> float:
    """From the start to the last request: what a limit shows in, however late a loaded machine makes the first one."""
    times: list[float] = []

    def answer(_: Any) -> Reply:
        times.append(time.monotonic())
        return reply

    with local_service(answer) as server:
        started = time.monotonic()
        run(server.url)
    assert len(times) == num_requests
    return max(times) - started


def test_the_rate_limit_of_many_threads(tmp_path: Path, web_search: Make) -> None:
    def run(url: str) -> None:
        tools = [web_search(url, cache=str(tmp_path), rate_per_s=40, timeout_s=60) for _ in range(2)]
        with ThreadPoolExecutor(100) as pool:
            results = list(pool.map(lambda n: tools[n % 2].run(f"query {n}"), range(100)))
        assert [result.error for result in results] == [None] * 100

    assert seconds_of(100, run) >= 99 / 40


def test_the_rate_limit_of_two_processes(tmp_path: Path) -> None:
    def run(url: str) -> None:
        queries = [[f"{process} {n}" for n in range(10)] for process in range(2)]
        for process in [in_a_process(url, tmp_path, 5, *some) for some in queries]:
            process.communicate(timeout=300)
            assert process.returncode == 0

    assert seconds_of(20, run) >= 19 / 5


def test_who_cannot_have_a_turn_is_told(tmp_path: Path, web_search: Make) -> None:
    with local_service(lambda _: Reply(TAVILY)) as server:
        tool = web_search(server.url, cache=str(tmp_path), rate_per_s=0.001, patience_s=60)
        with ThreadPoolExecutor(8) as pool:
            errors = [result.error for result in pool.map(tool.run, map(str, range(8)))]
    assert errors.count(None) == len(server.requests) == 1  # the next turn is after a quarter of an hour
    assert errors.count("rate_limit") == 7


def test_every_try_waits_for_its_turn(tmp_path: Path, web_search: Make) -> None:
    def run(url: str) -> None:
        web_search(f"{url}/down", cache=str(tmp_path), rate_per_s=4, attempts=3).run("x")

    assert seconds_of(3, run, Reply({}, 429, {"retry-after": "0"})) >= 2 / 4


@pytest.mark.parametrize("cached", [True, False])
def test_the_same_query_at_the_same_time_is_one_request(cached: bool, tmp_path: Path, web_search: Make) -> None:
    with local_service(lambda _: Reply(TAVILY, delay_s=2.0)) as server:
        tool = web_search(server.url, cache=str(tmp_path) if cached else None, top_k=2, timeout_s=60)
        together = threading.Barrier(50)

        def run(_: int) -> str:
            together.wait()
            return tool.run("x").text

        with ThreadPoolExecutor(50) as pool:
            assert set(pool.map(run, range(50))) == {OBSERVATION}
        assert len(server.requests) == 1
        assert tool.run("y").text == OBSERVATION


def test_a_failure_at_the_same_time_is_shared(web_search: Make) -> None:
    with local_service(lambda _: Reply(b"", 500, delay_s=2.0)) as server:
        tool = web_search(server.url, attempts=1, timeout_s=60)
        with ThreadPoolExecutor(10) as pool:
            assert {result.error for result in pool.map(tool.run, ["x"] * 10)} == {"service"}
        assert len(server.requests) == 1
