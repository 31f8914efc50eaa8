"""The simulation of schedules: small cases with known answers. Nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learning_parts.tables import written_into
from schedule import of_page
from schedule_parts.engines import SimulatedEngine, Speed
from schedule_parts.lengths import Drawn, recorded
from schedule_parts.training import Job, Schedule, SimulatedTraining

SPEED = Speed(base_s=1.0, per_sequence_s=0.5, capacity=2)


def test_sequences_share_an_engine() -> None:
    engine = SimulatedEngine(SPEED)
    for number, tokens in enumerate((2, 4, 3)):
        engine.submit(number, tokens)
    assert (engine.load, engine.next_event()) == (3, 4.0)  # two run, 2 s a token
    engine.go_to(4.0)
    assert engine.finished() == [0] and engine.next_event() == 8.0  # the third has come in: it needs 3, the second 2
    engine.go_to(8.0)
    assert engine.finished() == [1] and engine.next_event() == 9.5  # alone: 1.5 s
    engine.forget({2})
    assert (engine.load, engine.next_event(), engine.busy_s) == (0, None, 8.0)


class Fixed(Drawn):
    """Trajectories of the place of their question: the first of each pair is long."""

    def __init__(self) -> None:
        """Nothing is drawn."""

    def steps(self, name: str) -> list[tuple[int, float]]:
        return [(8 if int(name.split("/")[0]) % 2 == 0 else 2, 0.0)]


def job(**changes: float) -> Job:
    options = {"engines": 2, "speed": Speed(1.0, 0.0, 1), "batch_size": 2, "group_size": 1, "update_s_per_token": 0.4}
    return Job(**{**options, "sync_s": 1.0, "updates": 4, "warm_up": 1, **changes})  # type: ignore[arg-type]


def test_on_policy_takes_the_longest_then_the_update_then_the_weights() -> None:
    """8 s for the longer of two, 4 s for an update of 10 tokens, 1 s for the weights: 13 s."""
    for schedule in (Schedule("fixed", 0, fixed=True), Schedule("streamed", 0)):
        figures = SimulatedTraining(job(), schedule, Fixed()).run()
        assert figures.updates_per_hour == pytest.approx(3600 / 13)
        assert figures.engines_busy == pytest.approx(10 / 26) and figures.learner_busy == pytest.approx(4 / 13)
        assert (figures.staleness_max, figures.stale_share) == (0, 0)


def test_beside_the_update_engines_go_on() -> None:
    """One step off: 8 s for a batch, in which the update fits, and 1 s for the weights.

    Streamed, every two updates take 14 s. At 0 there are new weights and a complete batch: the learner takes it, and the
    engines begin a long and a short one. At 5 there are new weights, and who had the short one begins the next long one: not
    before, as what is complete and begun was one batch. At 9 (8 s, and 1 s of weights) the first long one is back, so the
    learner takes its batch, and a short one begins; both of the next batch are back at 13, and the weights are there at 14.
    """
    off = SimulatedTraining(job(), Schedule("fixed", 1, fixed=True), Fixed()).run()
    assert off.updates_per_hour == pytest.approx(3600 / 9, rel=0.02) and off.staleness_max == 1
    streamed = SimulatedTraining(job(updates=40), Schedule("streamed", 2), Fixed()).run()
    assert streamed.updates_per_hour == pytest.approx(2 * 3600 / 14)
    assert (streamed.engines_busy, streamed.learner_busy) == pytest.approx((20 / 28, 8 / 14))  # 20 tokens on two engines
    assert (streamed.staleness_mean, streamed.staleness_max) == (1, 1)


def test_lengths_come_from_transcripts(tmp_path: Path) -> None:
    steps = [{"start": 0, "stop": 5, "tool_seconds": 0.5}, {"start": 9, "stop": 12, "tool_seconds": 0.0}]
    lines = [{"steps": steps}, {"steps": []}, {"steps": [{"start": 0, "stop": 0, "tool_seconds": 0.0}]}]
    file = tmp_path / "iteration_00001.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = recorded([file])
    assert found == [[(5, 0.5), (3, 0.0)]]
    assert Drawn(found, 10, 0.0, 9.0, seed=0).steps("1/0/0") == [(50, 0.5), (30, 0.0)]
    assert Drawn(found, 1, 1.0, 9.0, seed=0).steps("1/0/0") == [(5, 9.5), (3, 0.0)]


def test_the_page_has_the_table_of_what_was_simulated() -> None:
    repository = Path(__file__).resolve().parents[2]
    page = (repository / "docs" / "rollout.md").read_text(encoding="utf-8")
    cases = json.loads((repository / "benchmarks" / "results" / "schedule.json").read_text(encoding="utf-8"))["cases"]
    assert written_into(page, {"schedule": of_page(cases)}, {}) == page
    assert "| max_staleness 2 |" in page
