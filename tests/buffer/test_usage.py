"""Accounts of the use of traces."""

import pytest

from rapo_rllib.buffer.usage import TraceUsage, UsageRecord
from rapo_rllib.settings import BufferSettings


def test_usages_add_up() -> None:
    total = TraceUsage(1, 0.5) + TraceUsage(3, 0.1)
    assert (total.uses, total.mean_reward) == (4, pytest.approx(0.2))
    assert total.shrunk_reward == pytest.approx(0.1)  # 4 of 8
    assert TraceUsage() + TraceUsage() == TraceUsage()


def test_runs_do_not_overwrite_each_other(make_buffer) -> None:
    buffer = make_buffer()
    assert buffer.usage.all() == {}
    first, second = UsageRecord(), UsageRecord()
    assert first.add([("a", 0.5), ("a", 0.1), ("b", -0.2)]) == 3
    second.add([("a", 0.3)])
    first.write(buffer.usage, "one")
    second.write(buffer.usage, "two")
    first.write(buffer.usage, "one")  # nothing new
    totals = buffer.usage.all()
    assert totals["a"].uses == 3 and totals["a"].mean_reward == pytest.approx(0.3)
    assert totals["b"] == TraceUsage(1, -0.2)


def test_what_was_counted_after_the_checkpoint_is_taken_back(make_buffer) -> None:
    buffer, record = make_buffer(), UsageRecord()
    record.add([("a", 0.5)])
    checkpoint = record.get_state()
    record.add([("a", 0.5), ("b", 1.0)])
    record.write(buffer.usage, "run")
    record.set_state(checkpoint)
    record.write(buffer.usage, "run")
    assert {key: usage.uses for key, usage in buffer.usage.all().items()} == {"a": 1, "b": 0}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_grown": 0}, "max_grown"),
        ({"growth": "always"}, "step_trace_buffer.growth"),
    ],
)
def test_wrong_values(tmp_path, wrong: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        BufferSettings(uri=str(tmp_path / "steps.db"), **wrong)
