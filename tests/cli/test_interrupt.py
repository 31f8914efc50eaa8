"""When trials end: at a criterion, on Ctrl-C, whose second press aborts."""

import pickle
import signal
from types import SimpleNamespace

import pytest

from rapo_rllib.cli.train.interrupt import Interruption, TrialStopper


@pytest.fixture
def interruption(monkeypatch):
    monkeypatch.setenv("TUNE_DISABLE_SIGINT_HANDLER", "0")
    interruption = Interruption()
    with interruption.listening():
        yield interruption


def test_the_first_ends_trials_and_the_second_aborts(interruption, capfd) -> None:
    stopper = TrialStopper({"training_iteration": 9}, interruption)
    assert not stopper("t", {"training_iteration": 1})
    signal.raise_signal(signal.SIGINT)
    assert "Press Ctrl-C again to abort" in capfd.readouterr().err
    assert stopper("t", {"training_iteration": 1})
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_what_it_was_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), Interruption().listening():
        assert signal.getsignal(signal.SIGINT) != before
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) == before


def test_a_job_in_the_background_of_a_script_does_not_hear_it() -> None:
    """Its shell has it ignore SIGINT, which is also the terminal's message to the script itself."""
    interruption, before = Interruption(), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruption.listening():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not interruption.requested


@pytest.mark.parametrize(
    ("statuses", "ends"),
    [(["RUNNING", "PENDING"], False), (["PENDING", "TERMINATED"], True), (["TERMINATED"], True), ([], True)],
)
def test_waiting_trials_end_once_none_is_running(interruption, statuses, ends) -> None:
    stopper = TrialStopper({}, interruption)
    trials = [SimpleNamespace(status=status, trial_id=status) for status in statuses]
    stopper.on_step_begin(0, trials)
    assert not stopper.stop_all()
    signal.raise_signal(signal.SIGINT)
    assert stopper.stop_all() == ends
    assert stopper.interrupted == ({"PENDING"} & set(statuses) if ends else set())


def test_what_ends_before_a_criterion_is_reached_was_interrupted(interruption) -> None:
    stopper = TrialStopper({"training_iteration": 9}, interruption)
    signal.raise_signal(signal.SIGINT)
    assert stopper("before", {"training_iteration": 8})
    assert stopper("at the end", {"training_iteration": 9})
    assert pickle.loads(pickle.dumps(stopper)).interrupted == {"before"}


def test_the_last_result_is_saved_whatever_the_checkpoint_config_says(interruption) -> None:
    stopper, result = TrialStopper({}, interruption), {}
    stopper.on_trial_result(0, [], None, result)
    assert result == {}
    signal.raise_signal(signal.SIGINT)
    stopper.on_trial_result(0, [], None, result)
    assert result == {"should_checkpoint": True}


def test_any_criterion_stops(capsys) -> None:
    stopper = TrialStopper({"a": 10, "b/c": 5, "episode_retrun": 1}, Interruption())
    assert not stopper("t", {"a": 9, "b": {"c": 4}, "episode_return": 7})
    assert "stop criterion episode_retrun is not among the results yet; did you mean episode_return?" in capsys.readouterr().err
    assert stopper("t", {"a": 10, "b": {"c": 4}})
    assert stopper("t", {"a": 9, "b": {"c": 5}})
    assert not stopper("t", {"a": float("nan"), "b": {"c": 4}})
    assert capsys.readouterr().err == ""  # warned once
    assert not TrialStopper({}, Interruption())("t", {})
