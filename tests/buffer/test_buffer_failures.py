"""What befalls a buffer: a server is killed, hangs, wants another token; its disk is full; its writer dies; its files rot."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from buffer_helpers import experts, wait_until
from places import SUPPORT
from processes import run_until_it_kills_itself

from rapo_rllib.buffer import writing
from rapo_rllib.buffer.build import ensure_built, step_traces
from rapo_rllib.buffer.statistics import statistics
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import HistoryQuery

TRACES = [trace for expert in experts(8) for trace in step_traces(expert)]
QUERIES = [HistoryQuery(trace.question, trace.history) for trace in TRACES]


def check(buffer: StepTraceBuffer, count: int = len(TRACES)) -> None:
    assert [hits[0].trace for hits in buffer.retrieve(QUERIES[:count])] == TRACES[:count]


@pytest.fixture(scope="module")
def lasting(milvus_server):
    """A buffer with 16 traces on the server. Who kills the server starts it again."""
    buffer = StepTraceBuffer(BufferSettings(uri=milvus_server.uri, collection="lasting", timeout_s=30.0))
    buffer.create()
    buffer.insert(TRACES)
    yield buffer
    buffer.drop()
    buffer.close()


@pytest.mark.milvus
def test_a_killed_server_is_named_and_retrieval_goes_on_with_the_same_handle_once_it_is_back(lasting, milvus_server):
    brief = StepTraceBuffer(replace(lasting.settings, timeout_s=2.0))
    check(lasting)
    check(brief)
    milvus_server.kill()
    told = rf"Milvus at {milvus_server.uri} does not answer .*start the server, or correct step_trace_buffer\.uri"
    for _ in range(2):  # for good: not only the first time
        start = time.monotonic()
        with pytest.raises(RetrievalError, match=told):
            brief.retrieve(QUERIES[:1])
        assert time.monotonic() - start < 60
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(lasting.retrieve(QUERIES)))
    waiting.start()  # asked while it was dead
    milvus_server.restart()
    served = time.monotonic()
    waiting.join(60)
    resumed_s = time.monotonic() - served
    assert [hits[0].trace for hits in answers[0]] == TRACES
    print(f"retrieval resumed {resumed_s:.1f} s after the server had begun to serve")  # noqa: T201
    assert wait_until(lambda: brief_answers(brief), 30)
    brief.close()


def brief_answers(buffer: StepTraceBuffer) -> bool:
    try:
        check(buffer)
    except RetrievalError:
        return False
    return True


@pytest.mark.milvus
def test_a_server_that_hangs_costs_no_more_than_the_timeout(lasting, milvus_server):
    buffer = StepTraceBuffer(replace(lasting.settings, timeout_s=1.0))
    assert wait_until(lambda: brief_answers(buffer), 30)
    milvus_server.pause()
    try:
        with pytest.raises(RetrievalError, match=rf"Milvus at {milvus_server.uri} does not answer \(search\).*DEADLINE"):
            buffer.retrieve(QUERIES[:1])
    finally:
        milvus_server.resume()
    assert wait_until(lambda: brief_answers(buffer), 30)
    buffer.close()


ASKS, VARIABLE = "asks for a token, and", "the environment variable MILVUS_TOKEN"


@pytest.mark.milvus
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token": "root:wrong"}, rf"{ASKS} that in {VARIABLE} is not known there: set it on every machine"),
        ({"token": "no-user"}, rf"{ASKS} that in {VARIABLE} is not known there: set it on every machine"),
        ({"token": ""}, rf"{ASKS} {VARIABLE} is not set: set it on every machine"),
        ({"database": "elsewhere"}, r"has no such database: make it there, or correct the path of step_trace_buffer\.uri"),
    ],
)
def test_a_wrong_token_or_database_is_told_at_once(hosted_milvus, settings, message, monkeypatch):
    monkeypatch.setenv("MILVUS_TOKEN", settings.get("token", hosted_milvus.token))
    uri = f"{hosted_milvus.uri}/{settings.get('database', '')}"
    buffer = StepTraceBuffer(BufferSettings(uri=uri))
    start = time.monotonic()
    with pytest.raises(RetrievalError, match=rf"Milvus at {uri} {message}") as told:
        buffer.exists()
    assert time.monotonic() - start < 30
    assert "wrong" not in str(told.value) and "Milvus:" not in str(told.value)  # no token is repeated


def insert_and_die(settings: BufferSettings) -> None:
    """Dies behind the first batch."""
    writing.WRITE_BATCH = 8
    buffer = StepTraceBuffer(settings)
    upsert = buffer.milvus.upsert

    def deadly(collection, rows, vectors) -> None:
        upsert(collection, rows, vectors)
        os.kill(os.getpid(), signal.SIGKILL)

    buffer.milvus.upsert = deadly
    buffer.insert(TRACES[:10])


@pytest.mark.milvus
@pytest.mark.slow  # on a Lite path: test_build.py, test_importing.py
def test_an_import_that_was_killed_is_completed_by_the_next_one(milvus_server):
    buffer = StepTraceBuffer(BufferSettings(uri=milvus_server.uri, collection="halfway"))
    buffer.create()
    buffer.close()
    run_until_it_kills_itself(insert_and_die, buffer.settings)
    assert buffer.count() == 8
    assert buffer.insert(TRACES[:10]).added == 2
    assert sorted(buffer.all_traces(), key=repr) == sorted(TRACES[:10], key=repr)
    buffer.drop()
    buffer.close()


def small_disk(folder: Path) -> list[str]:
    """Command that mounts a disk of 12 MB at ``folder``, for what follows alone; where user namespaces are, without root."""
    mount = f'mount -t tmpfs -o size=12m tmpfs {folder} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]


def on_a_small_disk(tmp_path: Path, script: str) -> dict:
    """What a script of ``tests/support`` found on a small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("unshare") is None or subprocess.run([*small_disk(folder), "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces, so that no small disk can be mounted")
    done = subprocess.run(
        [*small_disk(folder), sys.executable, str(SUPPORT / script), str(folder)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    found: dict = json.loads(done.stdout)
    return found


def test_a_full_disk_is_told_and_what_was_stored_is_still_found(tmp_path):
    found = on_a_small_disk(tmp_path, "full_disk.py")
    assert "refused upsert" in found["refusal"] and "No space left on device" in found["refusal"]
    assert "make room on the disk, then do the same again" in found["refusal"]
    assert found["before"] and found["while_full"] and found["another_reader"]
    assert 8 < found["count"] < 8 + 4 * 64


def test_what_a_writer_stored_that_was_killed_on_a_full_disk_is_found_once_there_is_room(tmp_path):
    found = on_a_small_disk(tmp_path, "full_disk_lite.py")
    assert "No space left on device" in found["refusal"] and found["stored"] > 8
    for told in found["while_full"]:
        kept = told == f"{found['stored']} rows"
        assert kept or ("No space left on device" in told and "make room on the disk" in told), told
        assert "is open in" not in told
    assert found["after"] and found["count"] == found["stored"]


def fill_and_die(uri: str) -> None:
    buffer = StepTraceBuffer(BufferSettings(uri=uri))
    buffer.create()
    buffer.insert(TRACES[:12])
    buffer.milvus.flush("step_traces")
    buffer.insert(TRACES[12:])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A Lite folder with 16 traces, one part of them in data files and the other in the log, which nobody has open."""
    path = tmp_path_factory.mktemp("sound") / "steps.db"
    run_until_it_kills_itself(fill_and_die, str(path))
    return path


def test_what_was_acknowledged_survives_a_kill(sound, tmp_path):
    buffer = StepTraceBuffer(BufferSettings(uri=str(shutil.copytree(sound, tmp_path / "steps.db"))))
    assert buffer.count() == len(TRACES) and buffer.missing() == 0
    check(buffer)
    buffer.close()


CUT, ROT, GONE = (lambda b: b[: len(b) // 2]), (lambda b: b"\0rot" * 50), (lambda b: None)
LOST = (
    r"12 of 16 step traces in collection 'step_traces' at .* are gone: its files are damaged\. Restore a copy, import the same"
)


@pytest.mark.parametrize(
    ("pattern", "change", "message"),
    [
        ("wal/wal_data_*", CUT, LOST.replace("12", "4")),
        ("partitions/_default/data/*.parquet", GONE, LOST),
        ("partitions/_default/data/*.parquet", ROT, r"refused .*Parquet.*restore a copy of the folder, or delete it"),
        ("schema.json", CUT, r"refused .*is not valid JSON.*restore a copy of the folder, or delete it"),
    ],
)
def test_a_damaged_folder_is_never_taken_for_a_smaller_buffer(sound, tmp_path, pattern, change, message):
    path = Path(shutil.copytree(sound, tmp_path / "steps.db"))
    (file,) = path.glob(f"collections/step_traces/{pattern}")
    content = change(file.read_bytes())
    file.unlink() if content is None else file.write_bytes(content)
    buffer = StepTraceBuffer(BufferSettings(uri=str(path)))
    with pytest.raises(RetrievalError, match=message):
        buffer.prepare()
    buffer.close()


@pytest.mark.parametrize("pattern", ["manifest.json", "manifest.json*"])
def test_without_its_manifest_a_folder_is_whole_or_refused(sound, tmp_path, pattern):
    path = Path(shutil.copytree(sound, tmp_path / "steps.db"))
    for file in path.glob(f"collections/step_traces/{pattern}"):
        file.write_bytes(b"\0rot" * 50)
    buffer = StepTraceBuffer(BufferSettings(uri=str(path)))
    try:  # what Lite makes of it depends on how far it was with its log and the manifest before this one
        buffer.prepare()
    except RetrievalError as error:
        assert re.search(f"{LOST}|both manifest.json and manifest.json.prev failed to load", str(error))
    else:
        assert buffer.count() == 16
    buffer.close()


def test_what_is_missing_is_added_by_building_again(sound, tmp_path):
    path = Path(shutil.copytree(sound, tmp_path / "steps.db"))
    next(path.glob("collections/step_traces/partitions/_default/data/*.parquet")).unlink()
    buffer = StepTraceBuffer(BufferSettings(uri=str(path)))
    buffer.set_note("built", {"traces": "expert", "max_traces": None})
    with pytest.raises(RetrievalError, match=LOST):
        buffer.retrieve(QUERIES)
    assert statistics(buffer).missing == buffer.missing() > 0
    assert ensure_built(buffer, lambda: experts(8)) == 16
    check(buffer)
    buffer.close()


def test_a_lost_collection_is_not_made_anew_without_a_word(sound, tmp_path):
    path = Path(shutil.copytree(sound, tmp_path / "steps.db"))
    shutil.rmtree(path / "collections" / "step_traces")
    buffer = StepTraceBuffer(BufferSettings(uri=str(path)))
    with pytest.raises(RetrievalError, match=LOST.replace("12", "16")):
        buffer.create()
    buffer.drop()
    buffer.create()
    assert buffer.count() == 0
    buffer.close()
