"""What other libraries say goes into a file, and nothing else leaves the terminal."""

from __future__ import annotations

import logging
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

from rapo_rllib.cli.other_lines import MARK, OtherLines, is_of_library, mark_others
from rapo_rllib.cli.train import log_file
from rapo_rllib.cli.train.log_file import LogFile, logged

SITE = "/x/.venv/lib/python3.11/site-packages"

OTHERS = [
    "(MainProcess pid=12) WARNING 11-23 03:44:51 [cpu.py:7] Triton is not installed. triton-cpu is expected on x86 CPUs.",
    "INFO 11-23 03:44:51 [utils.py:1] a line of vLLM",
    f"{SITE}/vllm/triton_utils/dispatcher.py:9: FutureWarning: `torch.distributed.reduce_op` is deprecated",
    '  if hasattr(value, "__dict__"):',
    "[W1123 03:44:51.123 utils.cpp:76] Warning: NUMA binding: Using MEMBIND policy (function init_cpu_memory_env)",
    "Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]",
    "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  9.5it/s]",
    "",
    "Loading weights: 100%|##########| 272/272 [00:00<00:00, 999.9it/s]",
    "2026-11-23 03:44:51,123\tWARNING algorithm_config.py:5045 -- You are running RAPO on the new API stack!",
    "[2026-11-23 03:44:51,123 W 12 34] (raylet) file_system_monitor.cc:1: /tmp is over 95% full",
    f"{MARK}Trainable.setup took 12.3 seconds. If your trainable is slow to initialize, consider reuse_actors=True",
]
OURS = [
    "00:12 iteration 1: sampled 96 trajectories in 12.0 s (100 tokens/s, reward 0.100, 9 retrievals); updating",
    "the Step-Trace Buffer does not answer; trajectories go on on-policy until it does: Milvus is gone",
    "Traceback (most recent call last):",
    f'  File "{SITE}/gymnasium/core.py", line 9, in step',
    "    return self.env.step(action)",
    "",
    "RuntimeError: 100% of the lines are broken | really",
    "2026-11-23 03:44:51,123\tERROR actor_manager.py:876 -- Worker exception caught during `apply()`",
    "(EngineCore pid=12) ERROR 11-23 03:44:51 [core.py:1] EngineCore failed to start",
    "[2026-11-23 03:44:51,123 E 12 34] (raylet) worker_pool.cc:1: some workers have not registered",
    "/home/me/my_env.py:9: UserWarning: my own warning",
    "  what my code prints, indented",
    "what my environment prints",
    "INFO: so does this",
]


def batch(lines: list[str], pid: int = 7, **more: Any) -> dict[str, Any]:
    return {"ip": "1.2.3.4", "pid": pid, "is_err": True, "actor_name": "RAPO", "lines": lines, **more}


def test_the_lines_of_others() -> None:
    stream = OtherLines()
    assert [line for line in OTHERS if not stream.takes(line)] == []


@pytest.mark.parametrize("before", ["", *OTHERS[:1]])
def test_errors_our_own_and_unknown_lines_stay(before: str) -> None:
    stream = OtherLines()
    stream.takes(before)
    assert [line for line in OURS if stream.takes(line)] == []


def test_everything_is_in_the_file_and_the_terminal_keeps_what_is_not_of_others(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "run" / "log.txt")
    shown = log.shown(batch(OTHERS[:3])) + log.shown(batch([OURS[4]], pid=8)) + log.shown(batch([*OTHERS[3:], *OURS]))
    assert shown == [OURS[4], *OURS]  # the code below a warning is of the same process and stream
    said = log.path.read_text().splitlines()
    assert [line[15:] for line in said if "pid=7" in line] == [
        f"(RAPO pid=7) {line.replace(MARK, '')}" for line in [*OTHERS, *OURS]
    ]
    everything = LogFile(tmp_path / "all.txt", shows_all=True)
    assert everything.shown(batch(OTHERS)) == [line.replace(MARK, "") for line in OTHERS]
    assert len((tmp_path / "all.txt").read_text().splitlines()) == len(OTHERS)


def test_a_file_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    log = LogFile(tmp_path / "run" / "log.txt")
    assert log.shown(batch(OTHERS[:2])) == OTHERS[:2]
    assert not log.warned("old", FutureWarning, f"{SITE}/a.py", 3)


class Dispatcher:
    """As Ray's."""

    def __init__(self) -> None:
        self.printed: list[tuple[Any, list[str]]] = []

    def emit(self, data: dict) -> None:
        self.printed.append((data["pid"], data["lines"]))


def test_workers_records_and_warnings_go_through_it_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dispatcher, handler, library = Dispatcher(), logging.StreamHandler(), logging.getLogger("a_library")
    monkeypatch.setattr(log_file, "_dispatcher", lambda: dispatcher)
    monkeypatch.setattr(library, "handlers", [handler])
    monkeypatch.setattr(library, "propagate", False)
    shown: list[str] = []
    monkeypatch.setattr(handler, "emit", lambda record: shown.append(record.getMessage()))
    monkeypatch.setattr(warnings, "showwarning", lambda message, *where: shown.append(str(message)))

    def say() -> None:
        for path, level, text in ((f"{SITE}/a.py", 30, "theirs"), (f"{SITE}/a.py", 40, "error"), ("/me/b.py", 30, "mine")):
            library.handle(logging.LogRecord("a_library", level, path, 1, text, (), None))
        for path, text in ((f"{SITE}/a.py", "their warning"), ("/me/b.py", "my warning")):
            warnings.showwarning(UserWarning(text), UserWarning, path, 1)
        dispatcher.emit(batch([OTHERS[0], OURS[0]]))
        dispatcher.emit(batch([OTHERS[0]]))
        dispatcher.emit(batch([OTHERS[0]], pid="autoscaler"))

    with logged(LogFile(tmp_path / "log.txt")):
        say()
    assert shown == ["error", "mine", "my warning"]
    assert dispatcher.printed == [(7, [OURS[0]]), ("autoscaler", [OTHERS[0]])]
    said = (tmp_path / "log.txt").read_text()
    assert "(a_library) WARNING theirs\n" in said and f"{SITE}/a.py:1: UserWarning: their warning\n" in said
    shown.clear()
    dispatcher.printed.clear()
    say()
    assert shown == ["theirs", "error", "mine", "their warning", "my warning"] and len(dispatcher.printed) == 3
    assert (tmp_path / "log.txt").read_text() == said


def test_a_worker_marks_what_is_not_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogRecordFactory()
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    try:
        mark_others()
        mark_others()  # once is enough
        made = logging.getLogRecordFactory()
        places = ((30, f"{SITE}/a.py"), (40, f"{SITE}/a.py"), (30, __file__))
        records = [made("x", *where, 1, "%d\nlines", (2,), None) for where in places]
        warnings.showwarning(UserWarning("theirs"), UserWarning, f"{SITE}/a.py", 3)
    finally:
        logging.setLogRecordFactory(before)
    assert {record.msg for record in records} == {"%d\nlines"}  # by which libraries' records are filtered
    assert [record.getMessage() for record in pickle.loads(pickle.dumps(records))] == [
        f"{MARK}2\n{MARK}lines",
        "2\nlines",
        "2\nlines",
    ]
    assert capsys.readouterr().err.startswith(f"{MARK}{SITE}/a.py:3: UserWarning: theirs\n")


def test_whose_code_it_is() -> None:
    import rapo_rllib.monitoring.quiet as own

    assert is_of_library(logging.__file__) and is_of_library(pytest.__file__) and is_of_library("<frozen abc>")
    assert not is_of_library(own.__file__) and not is_of_library("/home/me/env.py")
