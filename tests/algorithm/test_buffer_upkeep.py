"""The driver's upkeep of a real buffer: growth, views, checkpoints, and a Milvus that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rapo_rllib import RAPO
from rapo_rllib.algorithm.buffer_growth import BufferUpdater
from rapo_rllib.algorithm.trial_files import RunName
from rapo_rllib.buffer.layered import LayeredBuffer
from rapo_rllib.buffer.leak_guard import LeakGuard
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.errors import RetrievalError
from rapo_rllib.settings import BufferSettings, ProtocolSettings
from rapo_rllib.types import HistoryQuery, Question, StepTrace, Trajectory, TrajectoryGroup

EXPERT = StepTrace("expert", "What?", "", "<python>1</python>", 1.0, source="gpt")
Make = Callable[..., BufferUpdater]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[tuple[BufferUpdater, StepTraceBuffer]] = []

    def upkeep(
        run: str = "trial_00000", tunes: bool = True, evaluated: Sequence[str] = (), **settings: object
    ) -> BufferUpdater:
        options = {"growth": "successful", "max_grown": 3, "top_k": 2, **settings}
        buffer = StepTraceBuffer(BufferSettings(uri=str(tmp_path / "steps.db"), **options))  # type: ignore[arg-type]
        buffer.create()
        buffer.insert([EXPERT])
        protocol, guard = ProtocolSettings(), LeakGuard(evaluated)
        made.append((BufferUpdater(buffer, RunName(run, tunes), protocol, guard), buffer))
        return made[-1][0]

    yield upkeep
    for each, buffer in made:
        each.close()
        buffer.close()


def group(*texts: str, version: int = 0, correct: bool = True) -> TrajectoryGroup:
    """Trajectories of one step each."""
    trajectories = []
    for text in texts:
        trajectory = Trajectory("q", [1], question_text="What?", policy_version=version, reward=float(correct), correct=correct)
        trajectory.append_policy([2], [-1.0], [1.0]).text = f"{text} 0"
        trajectory.end = "answer"
        trajectories.append(trajectory)
    return TrajectoryGroup(Question("q", "What?", "1"), trajectories, version)


def stored(upkeep: BufferUpdater) -> set[str]:
    assert upkeep._grown is not None
    return {trace.text for trace in upkeep._grown.all_traces()}


def test_growth_and_its_limit(make: Make) -> None:
    upkeep = make()
    assert upkeep.view().grown_collection == "step_traces_grown_trial_00000"
    metrics = upkeep.take([group("a", "b", "a"), group("wrong", correct=False)])
    assert (metrics["added"], metrics["duplicates"], metrics["grown"]) == (2, 1, 2)
    metrics = upkeep.take([group("c", "d", version=50)])
    assert (metrics["added"], metrics["removed"], metrics["grown"], metrics["failures"]) == (2, 1, 3, 0)
    assert stored(upkeep) == {"b 0", "c 0", "d 0"} or stored(upkeep) == {"a 0", "c 0", "d 0"}
    assert upkeep.view().grown_version == 2


def test_a_runner_finds_what_has_grown(make: Make) -> None:
    upkeep = make()
    layers = LayeredBuffer(upkeep._buffer)
    layers.set_view(upkeep.view())
    upkeep.take([group("a")])
    layers.set_view(upkeep.view())
    (hits,) = layers.retrieve([HistoryQuery("What?", "")], 9)
    assert [hit.trace.source for hit in hits] == ["gpt", "policy"]


def test_a_checkpoint_brings_back_exactly_the_traces_of_then(make: Make) -> None:
    upkeep = make()
    upkeep.take([group("a", "b")])
    checkpoint, then = upkeep.get_state(), stored(upkeep)
    upkeep.take([group("c", "d", version=30)])
    assert stored(upkeep) != then
    resumed = make()  # the same run in a new process: its collection is still there
    resumed.view()
    resumed.set_state(checkpoint)
    assert stored(resumed) == then
    clone = make("trial_00001")  # another run takes the state over, as population based training does
    clone.set_state(checkpoint)
    assert stored(clone) == then and clone.view().grown_collection == "step_traces_grown_trial_00001"
    fresh = make()  # the same name, from the start
    fresh.view()
    assert stored(fresh) == set()
    fresh.set_state(None)
    assert fresh.get_state() == {"grown": [], "run": None}


def test_runs_outside_tune_keep_to_themselves_and_go_on_in_their_collection(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))
    names = []
    for _ in range(2):
        rapo = RAPO.__new__(RAPO)  # as Ray sets it up outside Tune
        rapo._storage = rapo._trial_info = None
        rapo._setup_logdir()
        names.append(rapo.run_name)
    first, second = (make(name.text, name.tunes) for name in names)
    first.take([group("a")])
    second.take([group("b")])
    assert (stored(first), stored(second)) == ({"a 0"}, {"b 0"})
    resumed = make("2026-01-01_00-00-00new", tunes=False)
    resumed.set_state(first.get_state())
    assert resumed.view().grown_collection == first.view().grown_collection and stored(resumed) == stored(first)
    trial = make()
    trial.set_state(first.get_state())
    assert trial.view().grown_collection == "step_traces_grown_trial_00000"


def test_training_goes_on_without_milvus_and_catches_up(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    upkeep = make()
    upkeep.view()
    grown = upkeep._grown
    assert grown is not None

    def unreachable(*arguments: object, **options: object) -> int:
        raise RetrievalError("Milvus does not answer")

    insert, grown.insert = grown.insert, unreachable  # type: ignore[method-assign]
    metrics = upkeep.take([group("a")])
    upkeep.view()
    upkeep.view()
    assert upkeep.take([group("a")])["failures"] == 2  # iterations, however often Milvus was asked in one
    assert metrics["failures"] == 1 and "could not be brought up to date" in caplog.text
    grown.insert = insert  # type: ignore[method-assign]
    assert upkeep.take([group("b")])["failures"] == 2
    assert stored(upkeep) == {"a 0", "b 0"}


def test_a_trace_that_is_written_again_is_as_new(make: Make) -> None:
    upkeep = make()
    layers = LayeredBuffer(upkeep._buffer)
    for version, rewards in ((0, 0.5), (20, 1.0)):
        again = group("a", version=version)
        again.trajectories[0].reward = rewards
        upkeep.take([again])
        layers.set_view(upkeep.view())
        hits = [hit for hit in layers.retrieve([HistoryQuery("What?", "")], 9)[0] if hit.trace.source == "policy"]
        assert [(hit.trace.weight_version, hit.trace.reward) for hit in hits] == [(version, rewards)]
        assert hits[0].similarity == pytest.approx(1.0, abs=1e-3)  # under the key of then
    assert upkeep.view().grown_version == 2
    upkeep.take([again])
    assert upkeep.view().grown_version == 2  # nothing to write


def test_what_answers_an_evaluation_question_does_not_enter(make: Make) -> None:
    donor, upkeep = make("trial_00001"), make(evaluated=["WHAT", "Other?"])
    donor.take([group("a")])
    metrics = upkeep.take([group("a", "b")])
    assert (metrics["refused"], metrics["added"]) == (2, 0) and stored(upkeep) == set()
    upkeep.set_state(donor.get_state())
    assert stored(upkeep) == set()
