"""Who has a Lite path open, and how the others reach it: without Ray one process, inside Ray an actor."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from buffer_helpers import wait_until
from places import REPOSITORY

from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.lite import handle as handles
from rapo_rllib.milvus.lite import owner as owners
from rapo_rllib.milvus.lite.handle import LiteHandle, OwnerActor
from rapo_rllib.milvus.lite.line import Address, Line, LineServer
from rapo_rllib.milvus.schema import Field

FIELDS = (Field("id"), Field("version", "INT64"))
BEGIN = "import sys; from rapo_rllib.milvus.handle import milvus_at; milvus = milvus_at(sys.argv[1], uri_key='uri'); "
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "steps.db")


@pytest.fixture
def milvus(path: str) -> Iterator[LiteHandle]:
    milvus = at(path)
    yield milvus
    milvus.close()


def at(path: str) -> LiteHandle:
    milvus = milvus_at(path, uri_key="step_trace_buffer.uri")
    assert isinstance(milvus, LiteHandle)
    return milvus


def refuse(address: Address) -> Line:
    raise ConnectionRefusedError


class Interrupted:
    """A connection during whose wait somebody presses Ctrl-C."""

    def __init__(self, line: Any) -> None:
        self.send, self.recv, self.close = line.send, line.recv, line.close

    def poll(self, timeout_s: float) -> bool:
        raise KeyboardInterrupt


def put(milvus: LiteHandle, *versions: int) -> None:
    milvus.create("steps", FIELDS, 2)
    rows = [{"id": f"r{version}", "version": version} for version in versions]
    milvus.upsert("steps", rows, np.ones((len(versions), 2), dtype=np.float32))


def versions(milvus: LiteHandle) -> list[int]:
    return sorted(row["version"] for page in milvus.pages("steps", ["version"], 2) for row in page)


def elsewhere(path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + "print(milvus.count('steps'))", path]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


def pid_of(path: str) -> int:
    return int(json.loads(Path(f"{path}.owner").read_text())[0])


def put_and_swap(milvus: LiteHandle, path: str) -> None:
    """Two rows; then an older copy of the folder, with the first row alone, lies in its place."""
    put(milvus, 1)
    milvus.close()
    shutil.copytree(path, f"{path}.copy")
    put(milvus, 2)
    os.rename(path, f"{path}.away")
    os.rename(f"{path}.copy", path)


class TestWithoutRay:
    """The process that asks has the path open."""

    def test_nothing_is_made_by_asking(self, milvus: LiteHandle, path: str) -> None:
        assert not milvus.exists("steps") and not Path(path).exists()

    def test_a_second_process_is_refused_by_name_until_the_first_lets_go(self, milvus: LiteHandle, path: str) -> None:
        put(milvus, 1, 2)
        refused = elsewhere(path)
        assert refused.returncode == 1
        assert f"uri: {path} is open in process {os.getpid()} on " in refused.stderr
        assert "Wait for that process or end it, use a copy of the folder, or name a Milvus server" in refused.stderr
        milvus.close()
        assert elsewhere(path).stdout == "2\n"
        assert versions(milvus) == [1, 2]

    def test_a_fork_is_a_second_process(self, milvus: LiteHandle, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        put(milvus, 1)
        monkeypatch.setattr(owners, "LEAVING_S", 0.0)
        reads, writes = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.write(writes, str(milvus.count("steps")).encode())
            except RetrievalError as error:
                os.write(writes, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert milvus.count("steps") == 1
        assert f"is open in process {os.getpid()}" in os.read(reads, 10_000).decode()
        assert versions(milvus) == [1]
        os.close(reads), os.close(writes)

    def test_it_is_closed_behind_the_last_handle(self, milvus: LiteHandle, path: str) -> None:
        put(milvus, 1)
        other = at(path)
        assert other.count("steps") == 1
        milvus.close()
        assert path in handles._here and other.count("steps") == 1
        del other
        gc.collect()
        assert path not in handles._here
        assert elsewhere(path).stdout == "1\n"

    def test_threads_share_a_handle(self, milvus: LiteHandle) -> None:
        put(milvus, 1, 2, 3)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: versions(milvus), range(40))) == [[1, 2, 3]] * 40

    def test_rows_may_name_their_columns_in_any_order(self, milvus: LiteHandle) -> None:
        milvus.create("steps", FIELDS, 2)
        vectors = np.ones((2, 2), dtype=np.float32)
        milvus.upsert("steps", [{"version": 1, "id": "a"}, {"version": 1, "id": "b"}], vectors)
        assert versions(milvus) == [1, 1]
        with pytest.raises(ValueError, match="two rows have the same id 'a'"):
            milvus.upsert("steps", [{"version": 1, "id": "a"}, {"version": 2, "id": "a"}], vectors)
        with pytest.raises(ValueError, match=r"row None has the columns \['version'\]"):
            milvus.upsert("steps", [{"version": 1}], vectors[:1])

    def test_a_path_that_cannot_be_one_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file.db").write_text("")
        with pytest.raises(ValueError, match=r"step_trace_buffer\.uri: .*file\.db is a file; Milvus Lite 3 keeps a folder"):
            put(at(str(tmp_path / "file.db")), 1)
        with pytest.raises(ValueError, match=r"step_trace_buffer\.uri: the folder .* cannot be made .* Name another"):
            put(at(str(tmp_path / "file.db" / "steps.db")), 1)

    def test_a_deleted_folder_is_made_anew(self, milvus: LiteHandle, path: str) -> None:
        put(milvus, 1)
        shutil.rmtree(path)
        assert not milvus.exists("steps") and not Path(path).exists()
        put(milvus, 2)
        assert versions(milvus) == [2]
        shutil.rmtree(path)
        with pytest.raises(RetrievalError, match="collection 'steps'"):
            milvus.upsert("steps", [{"id": "r3", "version": 3}], np.ones((1, 2), dtype=np.float32))

    def test_closing_writes_nothing_into_another_folder(self, milvus: LiteHandle, path: str) -> None:
        put_and_swap(milvus, path)
        milvus.close()
        assert versions(milvus) == [1]
        shutil.rmtree(path)
        milvus.close()
        assert not Path(path).exists()

    def test_a_copy_in_the_place_of_the_folder_is_what_is_read(self, milvus: LiteHandle, path: str) -> None:
        put_and_swap(milvus, path)
        assert versions(milvus) == [1]
        put(milvus, 3)
        milvus.close()
        assert versions(milvus) == [1, 3]


@pytest.mark.usefixtures("ray_session")
def test_what_waits_behind_another_call_for_too_long_is_not_done(path: str) -> None:
    actor = OwnerActor(path, "uri")
    assert actor.call(time.time() + 60, "create", "steps", FIELDS, 2, None) == (None, None)
    with ThreadPoolExecutor(1) as pool:
        with actor._owner.lock:
            waiting = pool.submit(actor.call, time.time() + 0.2, "drop", "steps")
            time.sleep(0.5)
        assert "drop came too late" in str(waiting.result()[0])
    error, _ = actor.call(time.time() - 1, "drop", "steps")
    assert "drop came too late" in str(error)
    assert actor.call(time.time() + 60, "exists", "steps") == (None, True)
    actor._owner.close()


def test_a_call_that_fails_late_leaves_the_line_that_another_thread_has_made(path: str) -> None:
    server, other = LineServer(lambda: "yes"), LineServer(lambda: "yes")
    late, fresh = handles.Reached(None, Line(server.address)), handles.Reached(None, Line(other.address))
    handles._reached[path] = fresh
    try:
        handles._lose(path, late)
        assert handles._reached[path].line is not None and handles._reached[path].line.ask(5.0) == "yes"
        handles._lose(path, fresh)
        assert path not in handles._reached
        for closed in (late.line, fresh.line):
            with pytest.raises(OSError, match="handle is closed"):
                closed.ask(5.0)
    finally:
        handles._reached.pop(path, None)


def test_one_that_has_ended_opens_nothing_more(path: str) -> None:
    owner = owners.Owner(path, "uri")
    owner.create("steps", FIELDS, 2, None)
    owner.end()
    for ask in (lambda: owner.count("steps"), lambda: owner.exists("steps"), lambda: owner.drop("steps")):
        with pytest.raises(owners.OwnerEndedError):
            ask()
    assert elsewhere(path).stdout == "0\n"


@pytest.mark.usefixtures("ray_session")
class TestInsideRay:
    """An actor has the path open."""

    def test_processes_share_it(self, milvus: LiteHandle, path: str) -> None:
        import ray

        @ray.remote(num_cpus=0)
        def write(number: int) -> None:
            row = {"id": f"r{number}", "version": number}
            milvus_at(path, uri_key="uri").upsert("steps", [row], np.ones((1, 2), dtype=np.float32))

        put(milvus, 1)
        owner = pid_of(path)
        assert owner != os.getpid() and path not in handles._here
        ray.get([write.remote(number) for number in (2, 3)])
        assert pid_of(path) == owner
        assert versions(milvus) == [1, 2, 3]
        assert f"is open in process {pid_of(path)}" in elsewhere(path).stderr

    def test_a_killed_owner_comes_back_with_its_rows(self, milvus: LiteHandle, path: str) -> None:
        put(milvus, 1, 2)
        other = at(path)  # of this process, too, which asks in between now and then
        assert other.count("steps") == 2
        for number in (3, 4):
            os.kill(pid_of(path), signal.SIGKILL)
            put(milvus, number)
        assert versions(milvus) == versions(other) == [1, 2, 3, 4]
        other.close()

    def test_it_ends_with_who_made_it_and_others_make_the_next(self, milvus: LiteHandle, path: str) -> None:
        import ray

        @ray.remote(num_cpus=0)
        class Other:
            def __init__(self) -> None:
                self.milvus = milvus_at(path, uri_key="uri")

            def count(self) -> int:
                return self.milvus.count("steps")

            def close(self) -> None:
                self.milvus.close()

        put(milvus, 1)
        other, first = Other.remote(), pid_of(path)
        assert ray.get(other.count.remote()) == 1 and pid_of(path) == first
        milvus.close()
        assert wait_until(lambda: not Path(f"/proc/{first}").exists(), 60)
        assert ray.get(other.count.remote()) == 1 and pid_of(path) != first
        assert milvus.count("steps") == 1
        milvus.close()
        second = pid_of(path)
        ray.get(other.close.remote())
        assert wait_until(lambda: not Path(f"/proc/{second}").exists(), 60)
        assert elsewhere(path).stdout == "1\n"

    def test_one_that_ends_lets_go_before_its_process_is_gone(self, milvus: LiteHandle, path: str, monkeypatch) -> None:
        put(milvus, 1)
        milvus.close()
        assert wait_until(lambda: not Path(f"{path}.owner").exists(), 60)
        put(milvus, 2)
        assert versions(milvus) == [1, 2]

    def test_what_was_open_here_before_is_handed_over(self, milvus: LiteHandle, path: str, monkeypatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(handles, "_is_inside_ray", lambda: False)
            put(milvus, 1)
            assert path in handles._here
        assert versions(milvus) == [1] and path not in handles._here and pid_of(path) != os.getpid()

    def test_an_owner_that_hangs_costs_no_more_than_the_timeout(self, path: str, monkeypatch) -> None:
        monkeypatch.setattr(handles, "BUSY_S", 1.0)
        milvus = milvus_at(path, timeout_s=1.0, uri_key="uri")
        put(milvus, 1)
        owner = pid_of(path)
        os.kill(owner, signal.SIGSTOP)
        assert wait_until(lambda: psutil.Process(owner).status() == psutil.STATUS_STOPPED, 60)  # thread by thread
        try:
            with pytest.raises(RetrievalError, match=r"steps\.db does not answer \(count\)"):
                milvus.count("steps")
        finally:
            with suppress(ProcessLookupError):  # Ray may have ended it: nobody has a handle any more
                os.kill(owner, signal.SIGCONT)
        monkeypatch.undo()
        assert milvus.count("steps") == 1
        milvus.close()

    def test_a_scan_goes_on_after_a_kill(self, milvus: LiteHandle, path: str) -> None:
        put(milvus, *range(1, 8))
        pages = milvus.pages("steps", ["version"], 3)
        found = next(pages)
        os.kill(pid_of(path), signal.SIGKILL)
        found += [row for page in pages for row in page]
        assert [row["version"] for row in found] == list(range(1, 8))

    def test_another_node_asks_the_actor_itself(self, milvus: LiteHandle, path: str, monkeypatch) -> None:
        put(milvus, 1)
        milvus.close()
        far = at(path)
        monkeypatch.setattr(handles, "Line", refuse)
        put(far, 2)
        assert versions(far) == [1, 2] and handles._reached[path].line is None
        assert handles._reached[path].known == {"steps"}  # whose rows are read: later calls get less time
        with pytest.raises(ValueError, match="two rows have the same id"):
            put(far, 3, 3)

    def test_who_has_no_key_is_not_answered(self, milvus: LiteHandle, path: str) -> None:
        import ray

        put(milvus, 1)
        _, address = ray.get(handles._reached[path].actor.place.remote())
        silent = Line(address._replace(key=b""))  # keeps nobody waiting
        for key in (b"guessed", b"x" * 32, b"x" * 100):
            with pytest.raises((OSError, EOFError)):
                Line(address._replace(key=key)).ask(60.0, time.time() + 60, "count", "steps")
        assert versions(at(path)) == [1]
        silent.close()

    def test_an_answer_that_nobody_waited_for_is_nobodys(self, milvus: LiteHandle, path: str, monkeypatch) -> None:
        put(milvus, 1, 2)
        line = handles._reached[path].line
        assert line is not None
        with monkeypatch.context() as patch:
            patch.setattr(line, "_line", Interrupted(line._line))
            with pytest.raises(KeyboardInterrupt):
                milvus.count("steps")
        assert versions(milvus) == [1, 2] and milvus.count("steps") == 2

    def test_refusals_arrive_as_they_are(self, milvus: LiteHandle, path: str) -> None:
        put(milvus, 1)
        with pytest.raises(ValueError, match="two rows have the same id 'r1'"):
            put(milvus, 1, 1)
        with pytest.raises(RetrievalError, match="refused open on collection 'none': collection 'none' does not exist"):
            milvus.count("none")

    def test_a_process_outside_keeps_it_from_opening(self, milvus: LiteHandle, path: str, monkeypatch) -> None:
        code = (
            "from rapo_rllib.milvus.schema import Field; milvus.create('none', [Field('id')], 2); print(1, flush=True); input()"
        )
        command = [sys.executable, "-c", BEGIN + code, path]
        with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == b"1\n"
            with pytest.raises(RetrievalError, match=f"is open in process {process.pid} on "):
                put(milvus, 1)
            process.stdin.close()
        put(milvus, 1)
        assert versions(milvus) == [1]
