"""A Milvus Lite path whose owner is killed again and again while everybody uses it. Usable as a script:

python tests/kill_lite.py --kills 50    kills the owner at random moments, then compares what is there with what was answered

Writers add, change and delete rows, one thread makes and drops collections, others scan, count, search, write notes, import
step traces and look them up. Every call that came back without an error must hold: at once, and after every kill.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rapo_rllib.buffer.build import step_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.milvus.collection import Collection
from rapo_rllib.milvus.handle import milvus_at
from rapo_rllib.milvus.lite.handle import LiteHandle
from rapo_rllib.milvus.schema import Field
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import ExpertTrajectory, HistoryQuery, Question, StepTrace

ROWS, FIELDS, DIM = "rows", (Field("id"), Field("version", "INT64"), Field("text")), 8
BEGUN = ("rows acknowledged", "step traces imported", "notes acknowledged", "scans")  # before anything is killed
# so small that rows go to files and files are merged all the time: a kill is to meet that, too
LIMITS = {"MILVUS_LITE_MEMTABLE_MEMORY_LIMIT_BYTES": "40000", "MILVUS_LITE_WAL_SIZE_LIMIT_BYTES": "80000"}


def text_of(key: str, version: int) -> str:
    """What a row holds; from it alone one sees whether the row is whole."""
    return f"{key} as of {version} " + "x" * (version * 37 % 300)


def vector_of(key: str) -> np.ndarray:
    vector = np.random.default_rng(list(key.encode())).normal(size=DIM)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Known:
    """What was asked for and what was acknowledged, of rows that only one writer writes. Version 0: not there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: dict[str, int] = {}
        self.asked: dict[str, int] = {}

    def ask(self, versions: dict[str, int]) -> None:
        with self._lock:
            self.asked |= versions

    def acknowledge(self, versions: dict[str, int]) -> None:
        with self._lock:
            self.acknowledged |= versions

    def certain(self) -> tuple[dict[str, int], set[str]]:
        """Acknowledged versions, and the keys that are being written or deleted just now."""
        with self._lock:
            return dict(self.acknowledged), {
                key for key, version in self.asked.items() if version != self.acknowledged.get(key)
            }


class KilledLite:
    """All users of one Lite path, and who kills its owner. ``wrong`` collects what should not have been."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.path, self.rng = str(folder / "steps.db"), rng
        self.stop, self.counts, self.wrong = threading.Event(), Counter[str](), list[str]()
        self.known, self.notes, self.made = Known(), [0, 0], dict[str, int]()
        self.imported: list[StepTrace] = []
        self._settings = BufferSettings(uri=self.path, collection="step_traces", top_k=1)
        self._traces = [trace for expert in experts(400) for trace in step_traces(expert)]

    def check(self, is_right: bool, what: str) -> None:
        self.counts["checks"] += 1
        if not is_right:
            self.wrong.append(what)

    @contextlib.contextmanager
    def handle(self) -> Iterator[LiteHandle]:
        handle = milvus_at(self.path, uri_key="uri")
        assert isinstance(handle, LiteHandle)
        try:
            yield handle
        finally:
            handle.close()

    # users, each in a thread of its own

    def write(self, name: str, rng: random.Random) -> None:
        with self.handle() as milvus:
            milvus.create(ROWS, FIELDS, DIM)
            number = 0
            while not self.stop.is_set():
                mine = [key for key, version in self.known.certain()[0].items() if version and key.startswith(name)]
                fresh = [f"{name}-{number + i}" for i in range(rng.randint(1, 12))]
                number += len(fresh)
                old = rng.sample(mine, min(len(mine), rng.randint(0, 6)))
                versions = {key: self.known.asked.get(key, 0) + 1 for key in [*fresh, *old]}
                self.known.ask(versions)
                rows = [{"id": key, "version": version, "text": text_of(key, version)} for key, version in versions.items()]
                milvus.upsert(ROWS, rows, np.stack([vector_of(key) for key in versions]))
                self.known.acknowledge(versions)
                self.counts["rows acknowledged"] += len(versions)
                if mine and rng.random() < 0.2:
                    gone = rng.sample(mine, min(len(mine), rng.randint(1, 3)))
                    self.known.ask(dict.fromkeys(gone, 0))
                    milvus.delete(ROWS, gone)
                    self.known.acknowledge(dict.fromkeys(gone, 0))
                    self.counts["deletions acknowledged"] += len(gone)
                if rng.random() < 0.05:
                    milvus.flush(ROWS)

    def read(self, name: str, rng: random.Random) -> None:
        with self.handle() as milvus:
            milvus.create(ROWS, FIELDS, DIM)
            while not self.stop.is_set():
                before, busy = self.known.certain()
                found, whole = self._reading(milvus, rng, before)
                after, still_busy = self.known.certain()
                self._compare(name, found, whole, before, busy | still_busy | changed(before, after))

    def _reading(self, milvus: LiteHandle, rng: random.Random, before: dict[str, int]) -> tuple[list[dict], set[str]]:
        """Rows, and of which keys they had to be all."""
        way, there = rng.randrange(4), [key for key, version in before.items() if version]
        names = [field.name for field in FIELDS]
        if way == 0 and there:
            keys = rng.sample(there, min(len(there), 40))
            self.counts["gets"] += 1
            return milvus.get(ROWS, keys, names), set(keys)
        if way == 1 and there:
            keys = rng.sample(there, min(len(there), 10))
            vectors = np.stack([vector_of(key) for key in keys])
            self.counts["searches"] += 1
            hits = milvus.search(ROWS, vectors, 1, names)
            return [row for rows in hits for row in rows], set(keys)
        if way == 2:
            milvus.count(ROWS)
            self.counts["counts"] += 1
        self.counts["scans"] += 1
        return [row for page in milvus.pages(ROWS, names, rng.choice((20, 200, 16_384))) for row in page], set(there)

    def _compare(self, name: str, found: list[dict], wanted: set[str], before: dict[str, int], unsure: set[str]) -> None:
        rows = {row["id"]: row for row in found}
        for key in wanted - unsure:
            self.check(key in rows, f"{name}: {key} of version {before[key]} is missing among {len(rows)}")
        for key, row in rows.items():
            version = row["version"]
            self.check(row["text"] == text_of(key, version), f"{name}: {key} is {row}")
            if key in before and key not in unsure:
                self.check(version == before[key], f"{name}: {key} has version {version}, not {before[key]}")

    def take_notes(self, name: str, rng: random.Random) -> None:
        with self.handle() as milvus:
            notes = Collection(milvus, ROWS)
            while not self.stop.is_set():
                self.notes[0] += 1
                notes.set_note("number", {"number": self.notes[0]})
                self.notes[1] = self.notes[0]
                found = notes.note("number")
                self.check(found == {"number": self.notes[1]}, f"{name}: {found}, not {self.notes[1]}")
                self.counts["notes acknowledged"] += 1

    def make_and_drop(self, name: str, rng: random.Random) -> None:
        with self.handle() as milvus:
            number = 0
            while not self.stop.is_set():
                one, number = f"made_{rng.randrange(3)}", number + 1
                if one in self.made:
                    rows = milvus.get(one, ["a"], ["version"]) if milvus.exists(one) else []
                    self.check([row["version"] for row in rows] == [self.made[one]], f"{name}: {one} holds {rows}")
                    del self.made[one]
                    milvus.drop(one)
                self.check(not milvus.exists(one), f"{name}: {one} was dropped and is there")
                milvus.create(one, FIELDS, DIM)
                row = {"id": "a", "version": number, "text": text_of("a", number)}
                milvus.upsert(one, [row], vector_of("a")[None])
                self.made[one] = number
                self.counts["collections made"] += 1

    def bring_in(self, name: str, rng: random.Random) -> None:
        buffer = StepTraceBuffer(self._settings)
        buffer.create()
        start = 0
        while not self.stop.is_set():
            traces = self._traces[start : start + 8]
            start += len(traces)
            if not traces:
                chosen = rng.sample(self.imported, 8)
                self.check(buffer.insert(chosen).added == 0, f"{name}: imported step traces were not there")
                continue
            added = buffer.insert(traces).added
            # what came before a kill counts as known when the call is repeated, so that no number is wrong that is smaller
            self.check(added <= len(traces), f"{name}: {added} of {len(traces)} added")
            self.imported += traces
            self.counts["step traces imported"] += len(traces)
        buffer.close()

    def look_up(self, name: str, rng: random.Random) -> None:
        buffer = StepTraceBuffer(self._settings)
        while not self.imported and not self.stop.wait(0.05):
            pass
        vectors: dict[str, Any] = {}
        while self.imported and not self.stop.is_set():
            known = list(self.imported)
            asked = rng.sample(known, min(len(known), 5))
            queries = [HistoryQuery(trace.question, trace.history) for trace in asked]
            vectors |= {t.id: buffer.embed([q])[0] for t, q in zip(asked, queries, strict=True) if t.id not in vectors}
            hits = buffer.nearest(np.stack([vectors[trace.id] for trace in asked]), queries, 1)
            for trace, (hit, *_) in zip(asked, hits, strict=True):
                self.check(hit.trace == trace, f"{name}: {hit.trace} for {trace}")
            self.counts["step traces looked up"] += len(asked)
        buffer.close()

    # who kills, and who looks at the end

    def kill(self, kills: int, seconds: float) -> None:
        """Kill ``kills`` owners, each so many seconds after it opened the path at most; half of them while they read it."""
        last, deadline = 0, time.monotonic() + 60.0 + kills * (seconds + 30.0)
        while self.counts["kills"] < kills and time.monotonic() < deadline:
            pid = self._pid()
            if not pid or pid == last:
                time.sleep(0.002)
                continue
            while_it_reads = self.counts["kills"] % 2 == 1
            time.sleep(self.rng.uniform(0.0, 0.05 if while_it_reads else seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.counts["kills"] += 1
                self.counts["kills while it read"] += while_it_reads
            last = pid

    def _pid(self) -> int:
        try:
            return int(json.loads(Path(f"{self.path}.owner").read_text(encoding="utf-8"))[0])
        except (FileNotFoundError, ValueError):  # half written
            return 0

    def run(self, kills: int, seconds: float = 1.5) -> None:
        users: list[Callable[[str, random.Random], None]] = [self.write] * 3 + [self.read] * 2
        users += [self.take_notes, self.make_and_drop, self.bring_in, self.look_up]
        threads = []
        for number, user in enumerate(users):
            name = f"{user.__name__}{number}"
            arguments = (user, name, random.Random(self.rng.random()))
            threads.append(threading.Thread(target=self._using, args=arguments, name=name, daemon=True))
        for thread in threads:
            thread.start()
        while min(self.counts[what] for what in BEGUN) == 0 and all(thread.is_alive() for thread in threads):
            time.sleep(0.05)
        self.kill(kills, seconds)
        time.sleep(1.0)
        self.stop.set()
        for thread in threads:
            thread.join(120)
            self.check(not thread.is_alive(), f"{thread.name} does not end")
        for name in ("after the last kill", "after a clean end"):
            self.look_at_everything(name)

    def _using(self, user: Callable[[str, random.Random], None], name: str, rng: random.Random) -> None:
        try:
            user(name, rng)
        except Exception as error:
            self.wrong.append(f"{name} broke off: {type(error).__name__}: {error}")

    def look_at_everything(self, name: str) -> None:
        """Every acknowledged row and collection, and what the buffer says of itself."""
        before, busy = self.known.certain()
        there = {key for key, version in before.items() if version}
        with self.handle() as milvus:
            rows = [row for page in milvus.pages(ROWS, [field.name for field in FIELDS]) for row in page]
            self._compare(name, rows, there, before, busy)
            lost = there - busy - {row["id"] for row in rows}
            self.counts[f"rows lost {name}"] = len(lost)
            self.check(busy or milvus.count(ROWS) == len(there), f"{name}: {milvus.count(ROWS)} rows, not {len(there)}")
            got = [
                row
                for start in range(0, len(rows), 500)
                for row in milvus.get(ROWS, sorted(there)[start : start + 500], ["id"])
            ]
            self.check(
                busy or {row["id"] for row in got} == there, f"{name}: {len(got)} of {len(there)} rows found by their keys"
            )
            note = Collection(milvus, ROWS).note("number") or {}
            self.check(note.get("number") in self.notes, f"{name}: the note is {note}, not one of {self.notes}")
            for one, number in self.made.items():
                found = milvus.get(one, ["a"], ["version"]) if milvus.exists(one) else []
                self.check([row["version"] for row in found] == [number], f"{name}: {one} holds {found}, not {number}")
        buffer = StepTraceBuffer(self._settings)
        stored = {trace.id: trace for trace in buffer.all_traces()}
        lost = {trace.id for trace in self.imported} - stored.keys()
        self.counts[f"step traces lost {name}"] = len(lost)
        self.check(all(stored.get(trace.id) == trace for trace in self.imported), f"{name}: step traces lost or changed")
        self.check(buffer.missing() == 0, f"{name}: the buffer itself misses {buffer.missing()}")
        buffer.close()


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def experts(count: int) -> Iterator[ExpertTrajectory]:
    for i in range(count):
        steps = (f"<think>Take {i} times {i + 1}.</think>", f"<answer>\\boxed{{{i * (i + 1)}}}</answer>")
        yield ExpertTrajectory(
            Question(f"k{i}", f"Number {i}: what is {i} times {i + 1}?", str(i * (i + 1))), steps, 1.0, "solver"
        )


def main() -> int:
    """Kill, then compare; exit status 1 if anything is lost or wrong."""
    import ray

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": LIMITS})
    with tempfile.TemporaryDirectory(prefix="kill_lite_") as folder:
        print(f"seed {seed}, in {folder}", flush=True)
        lite = KilledLite(Path(folder), random.Random(seed))
        lite.run(options.kills)
        print(*(f"{count:8} {what}" for what, count in sorted(lite.counts.items())), sep="\n")
        print(f"{len(lite.wrong)} things are wrong", *lite.wrong[:20], sep="\n")
    return 1 if lite.wrong or lite.counts["kills"] < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
