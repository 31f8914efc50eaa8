"""The live display of a training on a terminal: it stands below whatever is printed meanwhile, and is drawn anew in place.

Tune's events --> TrialState (one a trial) --> live_table --> rich.Live, which draws it four times a second

Lines of Ray's workers are printed by a thread of this process, through ``sys.stdout`` and ``sys.stderr``; as long as the
display is there both go through its console, and so do log handlers that have kept the streams from before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from types import TracebackType
from typing import Any, Self, TextIO, cast

from rich.console import Console, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live

from rapo_rllib.cli.other_lines import stream_handlers
from rapo_rllib.cli.train.interrupt import STOPPING, Interruption, TrialStopper
from rapo_rllib.cli.train.live_table import live_table
from rapo_rllib.cli.train.progress import TrainingReporter
from rapo_rllib.cli.train.trial_state import TrialState
from rapo_rllib.monitoring.progress import phase_of

_ASK_EVERY_S = 0.5  # for the phases of running trials
_ASKED = 16  # of these at most, so that a large sweep costs no more
_OTHER_COLUMNS = 76  # characters that they take beside the names of trials
_LINES_BESIDE_ROWS = 12  # of the terminal: title, heads, warnings, and some of what is printed above


def supports_live_display() -> bool:
    """Whether standard output is a terminal that can draw in place."""
    console = Console()
    return sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal


class LiveReporter(TrainingReporter):
    """Shows what trials do while it is entered, and leaves the last picture on the terminal.

    Args:
        title: of the experiment.
        stopper: when trials end, for the time left.
        interruption: Ctrl-C, which is said in the display; a line of its own would tear it.
        console: where to; another one for tests.
    """

    def __init__(self, title: str, stopper: TrialStopper, interruption: Interruption, console: Console | None = None) -> None:
        super().__init__()
        self._title, self._stopper, self._interruption = title, stopper, interruption
        self._states: dict[str, TrialState] = {}
        self._asked = 0.0
        self._console = console or Console()
        self._live = Live(
            get_renderable=self.picture,
            console=self._console,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(_through(self._console))
            opened.enter_context(self._live)
            opened.callback(setattr, self._interruption, "announced", False)
            self._interruption.announced = True
            self._open = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def picture(self) -> RenderableType:
        """Draw what is to be seen now."""
        warned = [
            (state, warning)
            for trial_id, state in list(self._states.items())
            if trial_id in self._watches
            for warning in self._watches[trial_id].holding
        ]
        stopping = self._interruption.requested and any(state.running for state in list(self._states.values()))
        rows = max(self._console.height - _LINES_BESIDE_ROWS, 3)
        return live_table(self._title, list(self._states.values()), warned, STOPPING if stopping else "", rows)

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune looks for events, some ten times a second."""
        for trial in trials:
            self._state(trial).take_status(trial.status)
        if time.monotonic() - self._asked >= _ASK_EVERY_S:
            self._asked = time.monotonic()
            for trial in [trial for trial in trials if self._state(trial).speaks][:_ASKED]:
                self._state(trial).take_phase(phase_of(trial.trial_id))

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial started."""
        super().on_trial_start(iteration, trials, trial, **info)
        self._state(trial).take_status("RUNNING")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        """An iteration ended."""
        super().on_trial_result(iteration, trials, trial, result, **info)
        self._state(trial).take_result(result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial ended."""
        self._state(trial).take_status("TERMINATED")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial failed."""
        super().on_trial_error(iteration, trials, trial, **info)
        self._state(trial).take_status("ERROR")

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """A checkpoint was written; which there are is said at the end."""

    def _say_result(self, trial: Any, result: dict[str, Any]) -> None:
        """The table has it."""

    def _state(self, trial: Any) -> TrialState:
        if trial.trial_id not in self._states:
            label = _label(trial, self._console.width - _OTHER_COLUMNS)
            self._states[trial.trial_id] = TrialState(label, self._stopper.criteria, self._stopper.end)
        return self._states[trial.trial_id]


def _label(trial: Any, room: int) -> str:
    """In what a trial differs from the others of its grid (``lr=0.001``; the value alone where there is no room), or its id."""
    differing = {key.rsplit("/", 1)[-1]: value for key, value in (getattr(trial, "evaluated_params", None) or {}).items()}
    named = ", ".join(f"{key}={value}" for key, value in differing.items())
    if len(named) > room:
        return ", ".join(map(str, differing.values()))
    return named or str(trial.trial_id)


class _Proxy(FileProxy):
    """A stream whose lines appear above the display. Without an encoding, click would write past it."""

    encoding = property(lambda self: self.rich_proxied_file.encoding)  # type: ignore[assignment]
    errors = property(lambda self: self.rich_proxied_file.errors)  # type: ignore[assignment]


@contextmanager
def _through(console: Console) -> Iterator[None]:
    """Standard output and error, and the log handlers that hold them, write through ``console``; files are left alone."""
    proxies = {id(each): cast("TextIO", _Proxy(console, each)) for each in (sys.stdout, sys.stderr) if each.isatty()}
    # Ray's and Python's own handlers that look up sys.stderr with every line have no stream to be changed.
    known = [handler for handler in stream_handlers() if "stream" in vars(handler)]
    held = [(handler, handler.stream) for handler in known if id(handler.stream) in proxies]
    for handler, stream in held:
        handler.setStream(proxies[id(stream)])
    out, err = proxies.get(id(sys.stdout), sys.stdout), proxies.get(id(sys.stderr), sys.stderr)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            yield
    finally:
        for handler, stream in held:
            handler.setStream(stream)
