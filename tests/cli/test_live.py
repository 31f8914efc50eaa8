"""The live display: what it shows of made-up trials, that nothing tears it, and a real job in a real terminal."""

from __future__ import annotations

import ast
import fcntl
import inspect
import io
import json
import logging
import os
import pty
import select
import struct
import sys
import termios
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyte
import pytest
import typer
from cli_runs import COMMAND, SMALL_PPO, checkpoints, environment
from places import SUPPORT
from rich.console import Console
from syntax import tree_of

from rapo_rllib.cli.options import RunOptions
from rapo_rllib.cli.train.experiments import ExperimentSpec
from rapo_rllib.cli.train.interrupt import Interruption, TrialStopper
from rapo_rllib.cli.train.live import LiveReporter, _label
from rapo_rllib.cli.train.live_table import clock, live_table
from rapo_rllib.cli.train.log_file import LogFile
from rapo_rllib.cli.train.progress import TrainingReporter
from rapo_rllib.cli.train.run import _reporting
from rapo_rllib.cli.train.time_left import TimeLeft
from rapo_rllib.cli.train.trial_state import TrialState
from rapo_rllib.monitoring.warnings import TrainingWarning

RESULT: dict[str, Any] = json.loads((SUPPORT / "real_result.json").read_text())
COLUMNS, LINES = 100, 30


class Terminal(io.StringIO):
    """A terminal of this process; ``lines`` is what its user sees."""

    def __init__(self) -> None:
        super().__init__()
        self.screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.Stream(self.screen)

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\n", "\r\n"))
        return len(text)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output and error of this process are one. Called in a test: pytest has its own there until it begins."""
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    return made


def shown(*states: TrialState, width: int = COLUMNS, **more: Any) -> list[str]:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(live_table("maths: RAPO", list(states), more.pop("warned", ()), **more))
    return [line.rstrip() for line in console.export_text().splitlines()]


def running(label: str = "a", said: str | None = None, **stop: float) -> TrialState:
    state = TrialState(label, stop)
    state.take_status("RUNNING")
    state.said = said
    return state


def test_a_trial_of_rapo() -> None:
    state = running(said="updating", training_iteration=20)
    state.take_result(RESULT | {"training_iteration": 4})
    state.started = time.monotonic() - 3700
    title, head, row = shown(state)
    assert title == "maths: RAPO"
    assert head.split() == ["phase", "iteration", "time", "left", "speed", "reward", "held-out"]
    assert row.split() == ["updating", "4/20", "1:01:40", "34", "min", "91", "tokens/s", "0.128", "0.227"]


def test_several_trials_are_rows_and_those_that_run_come_first() -> None:
    states = [TrialState(f"lr={number}", {}) for number in range(6)]
    states[1].take_status("TERMINATED")
    states[4].take_status("RUNNING")
    lines = shown(*states, max_rows=2)
    assert [line.split()[:2] for line in lines[2:4]] == [["lr=4", "starting"], ["lr=1", "ended"]]
    assert lines[4:] == ["and 4 waiting"]


def test_a_narrow_terminal_shortens_names_and_no_numbers() -> None:
    states = [running(f"retrieval_prob={number / 4}", said="awaiting rollouts", training_iteration=200) for number in range(3)]
    for state in states:
        state.take_result(RESULT | {"training_iteration": 120})
    rows = shown(*states, width=80)[2:]
    assert all(len(row) <= 80 and row.startswith("retriev") and "…" in row for row in rows)
    assert [row.split()[-7:] for row in rows] == [["120/200", "0:00", "2.9", "h", "91", "tokens/s", "0.128", "0.227"][-7:]] * 3


@pytest.mark.parametrize(
    ("parameters", "label"),
    [
        ({}, "t0"),
        ({"lr": 0.001, "model/lora/rank": 8}, "lr=0.001, rank=8"),
        ({"retrieval_prob": 0.5, "retrieval_advantage_weight": 0.2}, "0.5, 0.2"),
    ],
)
def test_the_label_of_a_trial(parameters: dict[str, Any], label: str) -> None:
    assert _label(trial(**parameters), room=24) == label


def test_lines_where_no_display_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec, stopper = ExperimentSpec("maths", "RAPO", {}), TrialStopper({}, None, Interruption())

    def reporter(**options: Any) -> type:
        made = _reporting(spec, stopper, Interruption(), RunOptions(**options), LogFile(tmp_path / "log.txt"))
        return type(made.enter_result if isinstance(made, nullcontext) else made)

    assert reporter() is TrainingReporter  # pytest's standard output is no terminal
    on_a_terminal(monkeypatch)
    assert reporter() is LiveReporter
    assert reporter(plain=True) is reporter(verbose=1) is TrainingReporter
    monkeypatch.setenv("TERM", "dumb")
    assert reporter() is TrainingReporter


def test_warnings_stand_below_with_what_to_do() -> None:
    first, second = running("lr=1"), running("lr=2")
    lines = shown(
        first, second, warned=[(second, TrainingWarning(3, "x", "nothing is retrieved", "raise it"))], note="Stopping"
    )
    assert lines[-3:] == ["! lr=2: nothing is retrieved", "  raise it", "Stopping"]
    many = [(first, TrainingWarning(3, str(number), "bad", "mend")) for number in range(9)]
    assert shown(first, warned=many)[-1] == "! and 3 more warnings"


@pytest.mark.parametrize(
    ("status", "said", "has_result", "phase"),
    [
        ("PENDING", None, False, "waiting"),
        ("PENDING", "starting", False, "starting"),
        ("RUNNING", None, False, "starting"),
        ("RUNNING", None, True, "training"),
        ("RUNNING", "sampling", True, "sampling"),
        ("PAUSED", "saving", True, "paused"),
        ("TERMINATED", "saving", True, "ended"),
        ("ERROR", "sampling", True, "failed"),
    ],
)
def test_the_phase(status: str, said: str | None, has_result: bool, phase: str) -> None:
    state = TrialState("a", {})
    state.take_status(status)
    state.take_phase(said)
    if has_result:
        state.take_result(RESULT)
    assert state.phase == phase


def test_the_held_out_accuracy_stays_until_the_next_one() -> None:
    state = running()
    state.take_result(RESULT)
    state.take_result({key: value for key, value in RESULT.items() if key != "evaluation"})
    assert state.accuracy == RESULT["evaluation"]["env_runners"]["accuracy"]


def test_the_speed_of_other_algorithms_is_in_steps() -> None:
    state = running()
    for number in (1, 2, 3):
        assert state.speed is None or number == 3
        state.take_result({"time_total_s": 2.0 * number, "num_env_steps_sampled_lifetime": 5000 * number})
    assert state.speed == "2,500 steps/s"


@pytest.mark.parametrize(("seconds", "text"), [(5.9, "0:05"), (247, "4:07"), (3847, "1:04:07")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_time_of_the_whole_experiment_ends_a_trial() -> None:
    state = running(reward=1)
    assert state.left is None
    state.end = time.monotonic() + 60
    assert state.left == TimeLeft(pytest.approx(60, abs=1), at_most=True)


def trial(number: int = 0, **parameters: Any) -> SimpleNamespace:
    return SimpleNamespace(
        trial_id=f"t{number}",
        experiment_tag=str(number),
        status="RUNNING",
        path=f"/results/t{number}",
        config={},
        evaluated_params=parameters,
    )


def test_whatever_is_printed_stands_above_an_untorn_display(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    logger, handler = logging.getLogger("a_library"), logging.StreamHandler(terminal)
    logger.addHandler(handler)
    interruption = Interruption()
    stopper = TrialStopper({"training_iteration": 4}, None, interruption)
    before = sys.stdout
    with LiveReporter("maths: RAPO", stopper, interruption, Console(width=COLUMNS, height=LINES)) as reporter:
        assert terminal.screen.cursor.hidden
        one = trial()
        reporter.on_trial_start(0, [one], one)
        print("from a worker", "x" * 120)  # noqa: T201
        typer.secho("by typer", err=True, fg="red")
        logger.warning("logged")
        for number in (1, 2, 3):
            result = json.loads(json.dumps(RESULT)) | {"training_iteration": number}
            result["env_runners"]["ends"] = {"length": 60.0}
            reporter.on_trial_result(0, [one], one, result)
            reporter._live.refresh()
        interruption.requested = True
        one.status = "TERMINATED"
        reporter.on_trial_complete(0, [one], one)
    logger.removeHandler(handler)
    assert sys.stdout is before and handler.stream is terminal and not terminal.screen.cursor.hidden
    text = terminal.lines
    assert text[0].startswith("[namespace(")  # "... started; results go to ..."
    assert "by typer" in text and "logged" in text and sum(line.startswith("from a worker") for line in text) == 1
    assert sum("Warning: 94% of the trajectories ended for length" in line for line in text) == 1
    assert text.count("maths: RAPO") == 1 and sum(line.startswith("phase ") for line in text) == 1
    assert text.index("maths: RAPO") > text.index("logged")
    assert text[text.index("maths: RAPO") + 2].split()[:2] == ["ended", "3/4"]
    assert text[-2:] == [
        "! 94% of the trajectories ended for length",
        "  raise max_response_tokens, max_step_tokens or max_steps",
    ]


def test_every_timed_part_of_an_iteration_is_a_phase() -> None:
    import rapo_rllib.algorithm.algorithm as algorithm

    calls = [node for node in ast.walk(tree_of(inspect.getsource(algorithm))) if isinstance(node, ast.Call)]
    timed = {call.args[0].value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "_timed"}
    assert timed == set(algorithm._PHASES)


def test_an_error_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    interruption = Interruption()
    with (
        pytest.raises(KeyboardInterrupt),
        LiveReporter("a", TrialStopper({}, None, interruption), interruption, Console(width=COLUMNS, height=LINES)),
    ):
        assert interruption.announced
        raise KeyboardInterrupt
    assert sys.stdout is terminal and not terminal.screen.cursor.hidden and not interruption.announced


@pytest.mark.usefixtures("ray_session")
def test_the_phase_reaches_another_process() -> None:
    import ray

    from rapo_rllib.monitoring.progress import Progress, phase_of

    @ray.remote
    def work() -> None:
        Progress("a_trial").phase("sampling")
        Progress("a_trial").phase("updating")

    assert phase_of("a_trial") is None
    ray.get(work.remote())
    assert phase_of("a_trial") == "updating"
    assert phase_of("another") is None


JOB = f"cart: {{run: PPO, env: CartPole-v1, config: {{{SMALL_PPO}, callbacks: noisy.Noisy}}}}\n"
NOISY = """
from ray.rllib.callbacks.callbacks import RLlibCallback


class Noisy(RLlibCallback):
    def on_train_result(self, **kwargs):
        print("a worker's line " + "x" * 120)
"""


def test_a_job_in_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB + "  # endless\n")
    (tmp_path / "noisy.py").write_text(NOISY)
    arguments = [*COMMAND, "train", "file", "job.yaml", "--storage-path", "results", "--ray-num-cpus", "1"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvpe(arguments[0], arguments, environment() | {"TERM": "xterm-256color", "COLUMNS": ""})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    screen, interrupted = pyte.HistoryScreen(COLUMNS, LINES, history=5000, ratio=0.5), False
    stream = pyte.ByteStream(screen)
    end = time.monotonic() + 150
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.5)[0]:
            continue
        try:
            stream.feed(os.read(terminal, 65536))
        except OSError:  # the other end was closed
            break
        rows = [line for line in screen.display if line.startswith("training ")]
        if rows and int(rows[0].split()[1]) >= 3 and not interrupted:
            interrupted = True
            os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    lines = ["".join(row[column].data for column in range(COLUMNS)).rstrip() for row in screen.history.top]
    lines += [line.rstrip() for line in screen.display]
    text = "\n".join(lines)
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert interrupted and not screen.cursor.hidden, text
    assert lines.count("cart: PPO") == 1, text  # every picture but the last was overwritten
    assert text.count("a worker's line") >= 3, text
    assert lines[lines.index("cart: PPO") + 2].startswith("ended"), text
    # within a line: a worker's last one may share it, for the display is gone by then and two threads print
    assert "Your training was interrupted." in text, text
    assert "Traceback" not in text, text
    assert len(checkpoints(tmp_path)) == 1
