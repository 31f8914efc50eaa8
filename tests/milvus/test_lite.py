"""One server per Lite path: shared by processes, restarted after a kill, gone when its last user leaves."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from buffer_helpers import experts, running, wait_until
from processes import CONTEXT
from pymilvus.client.connection_manager import ConnectionManager

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus import connection
from rapo_rllib.milvus.handle import MilvusHandle
from rapo_rllib.milvus.lite import lease as lite_lease
from rapo_rllib.milvus.lite.lease import LiteLease
from rapo_rllib.milvus.lite.server import beside, read_endpoint, try_lock
from rapo_rllib.milvus.schema import Field
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

TRACES = [trace for expert in experts(8) for trace in step_traces(expert)]
QUERIES = [HistoryQuery(trace.question, trace.history) for trace in TRACES]


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """A Lite path with 16 traces, which nobody has open."""
    path = str(tmp_path_factory.mktemp("lite") / "steps.db")
    buffer = StepTraceBuffer(BufferSettings(uri=path))
    buffer.create()
    buffer.insert(TRACES)
    buffer.close()
    return path


@pytest.fixture
def buffer(uri):
    buffer = StepTraceBuffer(BufferSettings(uri=uri))
    yield buffer
    buffer.close()


def check(buffer: StepTraceBuffer) -> None:
    assert [hits[0].trace for hits in buffer.retrieve(QUERIES)] == TRACES


def lease_is_free(uri: str) -> bool:
    with beside(uri, "users").open() as users:
        return try_lock(users, fcntl.LOCK_SH)


def read_in_child(uri: str, barrier, results) -> None:
    buffer = StepTraceBuffer(BufferSettings(uri=uri))
    barrier.wait(100)
    check(buffer)
    results.put(read_endpoint(uri).pid)
    barrier.wait(100)
    os.kill(os.getpid(), signal.SIGKILL)  # no process gets to say goodbye


def test_processes_share_one_server_which_outlives_none_of_them(uri):
    assert wait_until(lambda: read_endpoint(uri) is None)
    barrier, results = CONTEXT.Barrier(2), CONTEXT.SimpleQueue()
    children = [CONTEXT.Process(target=read_in_child, args=(uri, barrier, results)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [-signal.SIGKILL] * 2
    pids = {results.get() for _ in children}
    assert len(pids) == 1
    assert wait_until(lambda: not running(*pids))
    assert read_endpoint(uri) is None
    assert not beside(uri, "endpoint").exists()


def test_a_killed_server_comes_back_with_its_rows(uri, buffer):
    check(buffer)
    before = read_endpoint(uri).pid
    os.kill(before, signal.SIGKILL)
    check(buffer)  # from the snapshot, which needs no server
    assert buffer.count() == 16
    after = read_endpoint(uri).pid
    assert after != before
    errors = []

    def read() -> None:
        try:
            assert buffer.count() == 16
            check(buffer)
        except BaseException as error:
            errors.append(error)

    os.kill(after, signal.SIGKILL)
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_a_lost_connection_is_closed_once_nobody_can_be_using_it(uri, buffer, monkeypatch):
    before = open_connections()
    for longest_call_s, kept in ((3600.0, 2), (0.0, 1)):
        monkeypatch.setattr(connection, "LONG_S", longest_call_s)
        assert buffer.count() == 16
        os.kill(read_endpoint(uri).pid, signal.SIGKILL)
        assert buffer.count() == 16
        assert open_connections() == before + kept
    os.kill(read_endpoint(uri).pid, signal.SIGKILL)
    monkeypatch.undo()
    assert buffer.count() == 16
    assert open_connections() == before + 2
    buffer.close()
    assert open_connections() == before


def open_connections() -> int:
    return ConnectionManager.get_instance().get_stats()["total_connections"]


def test_acknowledged_rows_survive_a_kill(tmp_path):
    buffer = StepTraceBuffer(BufferSettings(uri=str(tmp_path / "steps.db")))
    buffer.create()
    buffer.insert(TRACES)
    os.kill(read_endpoint(buffer.uri).pid, signal.SIGKILL)
    assert buffer.count() == 16
    check(buffer)
    buffer.close()


def test_what_is_not_there_is_told_though_the_server_dies_meanwhile(uri, buffer, monkeypatch):
    call = buffer.milvus.call

    def killed_after(method: str, *args, **kwargs):
        found = call(method, *args, **kwargs)
        if method == "has_collection":
            os.kill(read_endpoint(uri).pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(buffer.milvus, "call", killed_after)
    assert not buffer.milvus.exists("nothing")


def test_a_page_of_a_scan_may_take_longer_than_a_request(uri):
    buffer = StepTraceBuffer(BufferSettings(uri=uri, timeout_s=1.0))
    pages = buffer.milvus.pages(buffer.collection, ["id"], 10)
    found = next(pages)
    pid = read_endpoint(uri).pid
    os.kill(pid, signal.SIGSTOP)  # as slow as Lite is where it reads 170,000 rows with their vectors for a page
    threading.Timer(2.5, os.kill, (pid, signal.SIGCONT)).start()
    assert len(found) + sum(len(page) for page in pages) == 16
    buffer.close()


@pytest.mark.usefixtures("brief_servers")
def test_the_first_user_may_leave_before_the_others(uri, buffer):
    assert wait_until(lambda: read_endpoint(uri) is None)  # a server of an earlier test looks at the leases less often
    first = LiteLease(uri, "uri")
    first.address()
    pid = read_endpoint(uri).pid
    check(buffer)
    first.release()
    assert not wait_until(lambda: not running(pid), 1)  # longer than two looks at the leases
    check(buffer)
    assert read_endpoint(uri).pid == pid
    buffer.close()
    assert wait_until(lambda: not running(pid))


@pytest.mark.usefixtures("brief_servers")
def test_a_leaving_server_makes_newcomers_wait(uri, buffer):
    check(buffer)
    pid = read_endpoint(uri).pid
    buffer.close()
    assert wait_until(lambda: not lease_is_free(uri) or not running(pid))  # the server has begun to end
    check(buffer)
    assert read_endpoint(uri).pid != pid


@pytest.mark.usefixtures("brief_servers")
def test_a_deleted_folder_is_made_anew(tmp_path):
    path = str(tmp_path / "steps.db")
    lease = LiteLease(path, "uri")
    lease.address()
    pid = read_endpoint(path).pid
    shutil.rmtree(path)
    fresh = LiteLease(path, "uri")
    fresh.address()
    assert not running(pid) or wait_until(lambda: not running(pid))
    assert os.path.exists(os.path.join(path, "LOCK"))
    lease.release()
    fresh.release()


def write(handle: MilvusHandle, *collections: str, key: str) -> None:
    for collection in collections:
        handle.create(collection, [Field("id")], 2)
        handle.upsert(collection, [{"id": key}], np.ones((1, 2), dtype=np.float32))


def keys(handle: MilvusHandle) -> list[str]:
    return [row["id"] for row in handle.get("steps", ["old", "new"], ["id"])]


def test_the_server_of_a_deleted_folder_writes_nothing_into_the_next(tmp_path):
    path = str(tmp_path / "of_a_user" / "steps.db")
    one, two = MilvusHandle(path, uri_key="uri"), MilvusHandle(path, uri_key="uri")
    write(one, "steps", "only_here", key="old")
    left = read_endpoint(path).pid
    one.close()  # its server looks round every two seconds, and has not written the rows to their files yet
    shutil.rmtree(tmp_path / "of_a_user")
    write(two, "steps", key="new")
    assert read_endpoint(path).pid != left
    assert wait_until(lambda: not running(left))
    write(two, "only_here", key="new")
    for _ in range(2):  # also as its own server leaves it
        assert keys(two) == ["new"]
        ended = read_endpoint(path).pid
        two.close()
        assert wait_until(lambda pid=ended: not running(pid))


@pytest.mark.usefixtures("brief_servers")
def test_a_copy_in_the_place_of_the_folder_is_what_is_read(tmp_path):
    path, copy = str(tmp_path / "steps.db"), str(tmp_path / "copy.db")
    one, two = MilvusHandle(path, uri_key="uri"), MilvusHandle(path, uri_key="uri")
    write(one, "steps", key="old")
    pid = read_endpoint(path).pid
    one.close()
    assert wait_until(lambda: not running(pid))
    shutil.copytree(path, copy)
    write(one, "steps", key="new")
    one.close()
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    assert keys(two) == ["old"]
    two.close()


class Starting(subprocess.Popen):
    """A server process to which something happens once, as soon as it is there."""

    happens: list

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.happens:
            self.happens.pop()(self.pid)


def test_a_server_that_is_killed_while_it_starts_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Starting, "happens", [lambda pid: os.killpg(pid, signal.SIGKILL)] * 2, raising=False)
    monkeypatch.setattr(lite_lease.subprocess, "Popen", Starting)
    handle = MilvusHandle(str(tmp_path / "steps.db"), uri_key="uri")
    write(handle, "steps", key="new")
    assert keys(handle) == ["new"] and Starting.happens == []
    handle.close()
    Starting.happens = [lambda pid: os.killpg(pid, signal.SIGKILL)] * 3
    with pytest.raises(RetrievalError, match=r"Milvus Lite server of .*others\.db did not start \(it was killed\)"):
        LiteLease(str(tmp_path / "others.db"), "uri").address()


def test_a_server_that_takes_long_to_open_its_collections_is_waited_for(tmp_path, monkeypatch, caplog):
    path = str(tmp_path / "steps.db")
    # a request has ten seconds, since other tests may leave the new server little of a core; nothing here waits for them
    handle, other = (MilvusHandle(path, timeout_s=10.0, uri_key="uri") for _ in range(2))
    write(handle, "steps", key="new")
    assert keys(other) == ["new"]
    monkeypatch.setattr(lite_lease, "SAY_S", 0.2)
    monkeypatch.setattr(connection, "LITE_RESTART_S", 0.5)

    def pause(pid: int) -> None:
        os.killpg(pid, signal.SIGSTOP)
        threading.Timer(1.5, os.killpg, (pid, signal.SIGCONT)).start()

    monkeypatch.setattr(Starting, "happens", [pause], raising=False)
    monkeypatch.setattr(lite_lease.subprocess, "Popen", Starting)
    os.kill(read_endpoint(path).pid, signal.SIGKILL)
    found = []
    waiting = threading.Thread(target=lambda: found.append(keys(other)))
    waiting.start()
    assert keys(handle) == ["new"]  # though that took longer than a call is repeated for
    waiting.join(60)
    assert found == [["new"]]
    assert "steps.db is opening its collections" in caplog.text and "waiting for another process to unlock" in caplog.text
    handle.close()
    other.close()


@pytest.mark.usefixtures("lite_programs")
def test_a_server_that_cannot_start_says_why(tmp_path):
    path = tmp_path / "steps.db"
    path.mkdir()
    (path / "collections").write_text("not a folder")
    with pytest.raises(
        RetrievalError, match=r"Milvus Lite server of .*steps\.db did not start \(FileExistsError.*steps\.db\.log"
    ):
        LiteLease(str(path), "uri").address()
    assert wait_until(lambda: "Traceback" in beside(str(path), "log").read_text())  # behind what the starter reads


def test_a_path_in_use_on_another_machine_is_refused(uri, buffer):
    check(buffer)
    endpoint = json.loads(beside(uri, "endpoint").read_text())
    with open(beside(uri, "endpoint"), "r+") as file:  # same file, so the server's lock stays
        file.truncate()
        json.dump(endpoint | {"machine": "other-host"}, file)
    try:
        with pytest.raises(RetrievalError, match=r"in use on the machine other-host.*start a Milvus server"):
            LiteLease(uri, "uri").address()
    finally:
        os.kill(endpoint["pid"], signal.SIGKILL)
        assert wait_until(lambda: read_endpoint(uri) is None)
    check(buffer)


def test_the_server_listens_on_this_machine_only(uri, buffer):
    check(buffer)
    port = read_endpoint(uri).port
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
        listening += [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
    # 127.0.0.1 in little endian, plain or as an IPv6 address
    assert listening
    assert set(listening) <= {f"0100007F:{port:04X}", f"0000000000000000FFFF00000100007F:{port:04X}"}


def test_the_server_module_loads_nothing_heavy():
    code = (
        "import sys, rapo_rllib.milvus.lite.server;"
        "print([m for m in ('ray', 'grpc', 'pymilvus', 'milvus_lite', 'torch') if m in sys.modules])"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
