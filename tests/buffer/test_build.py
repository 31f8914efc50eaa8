"""Cutting trajectories, and building once: repeated, killed, twice at the same time."""

import itertools
import os
import signal
import sys

import pytest
from buffer_helpers import experts, wait_until
from processes import CONTEXT, run_until_it_kills_itself

from rapo_rllib.buffer.build import cut, ensure_built, step_traces
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.settings import BufferSettings
from rapo_rllib.types import ExpertTrajectory, HistoryQuery, Question


def test_a_trajectory_is_cut_into_keys_and_values():
    expert = ExpertTrajectory(Question("q1", "What?"), ("a", "b", "c"), 0.5, "s")
    traces = step_traces(expert)
    assert [(t.history, t.text, t.step_index) for t in traces] == [("", "a", 0), ("a", "b", 1), ("ab", "c", 2)]
    assert {(t.question, t.question_id, t.reward, t.source) for t in traces} == {("What?", "q1", 0.5, "s")}
    assert len({t.id for t in traces}) == 3
    assert traces == step_traces(expert)


@pytest.mark.parametrize("reward", [0.0, -1.0])
def test_failures_are_never_cut(reward):
    assert step_traces(ExpertTrajectory(Question("q", "?"), ("a",), reward, "s")) == []


def test_a_whole_trajectory_is_one_trace():
    expert = ExpertTrajectory(Question("q1", "What?"), ("a", "b", "c"), 0.5, "s")
    (trace,) = cut(expert, "trajectory")
    assert (trace.history, trace.text, trace.step_index, trace.question_id) == ("", "abc", 0, "q1")
    assert trace.id not in {step.id for step in step_traces(expert)}


def test_a_buffer_of_whole_trajectories_and_one_of_steps_at_one_path(make_buffer):
    whole = make_buffer(level="trajectory", collection="whole")
    assert ensure_built(whole, lambda: experts(5)) == 5
    expert = next(iter(experts(1)))
    (hit,) = whole.retrieve([HistoryQuery(expert.question.text, "")])[0]
    assert hit.trace.text == "".join(expert.steps) and hit.similarity > 0.99
    assert ensure_built(make_buffer(), lambda: experts(5)) == 10
    message = (
        r"retrieval_level = '{}': the buffer in .*collection '{}' at .* was built with '{}'. Name another collection or uri"
    )
    with pytest.raises(ValueError, match=message.format("step", "whole", "trajectory")):
        ensure_built(make_buffer(collection="whole"), lambda: experts(5))
    with pytest.raises(ValueError, match=message.format("trajectory", "step_traces", "step")):
        ensure_built(make_buffer(level="trajectory", traces=None), None)


@pytest.mark.milvus
def test_the_index_of_a_server_is_that_of_the_settings_also_when_nothing_is_built(make_buffer, milvus_server):
    place = {"uri": milvus_server.uri, "collection": "built", "timeout_s": 30.0}
    first = make_buffer(index="hnsw", **place)
    ensure_built(first, lambda: experts(5))
    assert first.milvus.index_of("built") == "HNSW"
    ensure_built(make_buffer(**place), lambda: experts(5))
    assert first.milvus.index_of("built") == "HNSW"  # auto leaves what is there
    ensure_built(make_buffer(index="exact", **place), None)
    assert first.milvus.index_of("built") == "FLAT"
    first.drop()


def test_built_on_first_use_only(make_buffer):
    buffer = make_buffer()
    seen = []
    assert ensure_built(buffer, lambda: experts(40), on_progress=seen.append) == 80
    assert seen == [64, 80]
    assert ensure_built(buffer, lambda: pytest.fail("built again")) == 80
    assert ensure_built(buffer, None) == 80
    assert ensure_built(buffer, lambda: pytest.fail("built again"), max_traces=10) == 80  # has more than enough
    other = make_buffer(traces="other.jsonl")
    with pytest.raises(ValueError, match=r"was built from 'expert', not from 'other\.jsonl'"):
        ensure_built(other, lambda: experts(1))
    assert ensure_built(make_buffer(traces=None), None) == 80


def test_max_traces_stops_and_can_be_raised(make_buffer):
    assert ensure_built(make_buffer(), lambda: experts(100), max_traces=7) == 7
    assert ensure_built(make_buffer(), lambda: experts(100), max_traces=9) == 9


@pytest.mark.parametrize("between", [0, 300])  # in one window of those that are written together, or in two
def test_a_step_that_trajectories_share_gets_the_best_of_their_rewards(make_buffer, between):
    question = Question("q1", "What?")
    shared = [ExpertTrajectory(question, ("a", end), reward, "s") for end, reward in (("b", 0.2), ("c", 1.0), ("d", 0.5))]
    source = [shared[0], *experts(between // 2), *shared[1:]]
    buffer = make_buffer()
    assert ensure_built(buffer, lambda: source) == 4 + between
    (hits,) = buffer.retrieve([HistoryQuery("What?", "")], top_k=4)
    found = {hit.trace.text: hit.trace.reward for hit in hits if hit.trace.question == "What?"}
    assert found == {"a": 1.0, "b": 0.2, "c": 1.0, "d": 0.5}


def test_a_source_is_read_once_and_not_beyond_what_is_wanted(make_buffer):
    read = []

    def endless():
        for index in itertools.count():
            read.append(index)
            yield ExpertTrajectory(Question("q", "What?"), ("a", f"b{index}"), 1.0, "s")

    assert ensure_built(make_buffer(), endless, max_traces=5) == 5
    assert read == [0, 1, 2, 3]


def test_nothing_to_build_from(make_buffer):
    with pytest.raises(ValueError, match=r"there is no complete buffer in collection 'step_traces'.*step_trace_buffer\.traces"):
        ensure_built(make_buffer(traces=None), None)
    with pytest.raises(ValueError, match=r"step_trace_buffer\.traces: 'expert' holds no trajectory with a positive reward"):
        ensure_built(make_buffer(), lambda: experts(3, reward=0.0))


def build_and_die(uri: str) -> None:
    def die(seen: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    ensure_built(StepTraceBuffer(BufferSettings(uri=uri)), lambda: experts(40), on_progress=die)


def test_a_build_that_was_killed_is_completed(make_buffer):
    buffer = make_buffer()
    run_until_it_kills_itself(build_and_die, buffer.uri)
    assert buffer.count() == 64  # the first batch
    with pytest.raises(ValueError, match="there is no complete buffer"):
        ensure_built(buffer, None)
    embedded = []
    encode = buffer.embedder.encode
    buffer.embedder.encode = lambda pairs: embedded.append(len(pairs)) or encode(pairs)
    assert ensure_built(buffer, lambda: experts(40)) == 80
    assert embedded == [16]  # what was stored is not embedded again


def build_and_report(uri: str, folder: str) -> int:
    def source():
        with open(os.path.join(folder, str(os.getpid())), "w"):
            yield from experts(40)

    return ensure_built(StepTraceBuffer(BufferSettings(uri=uri)), source)


def test_two_processes_build_once(make_buffer, tmp_path):
    buffer = make_buffer()
    (tmp_path / "builders").mkdir()
    processes = [CONTEXT.Process(target=build_and_report, args=(buffer.uri, str(tmp_path / "builders"))) for _ in range(2)]
    for process in processes:
        process.start()
    assert wait_until(lambda: all(not process.is_alive() for process in processes), 120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(os.listdir(tmp_path / "builders")) == 1
    assert buffer.count() == 80


def test_processes_of_a_ray_cluster_build_once_and_all_use_it(ray_session, make_buffer, tmp_path):
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    @ray.remote(num_cpus=1)
    class Builder:
        def load(self, uri: str) -> int:
            return StepTraceBuffer(BufferSettings(uri=uri)).embedder.dim

        def build(self, uri: str, folder: str) -> int:
            return build_and_report(uri, folder)

    buffer = make_buffer()
    (tmp_path / "builders").mkdir()
    builder = Builder.remote()
    assert ray.get(builder.load.remote(buffer.uri)) == buffer.embedder.dim  # both begin at once
    there = builder.build.remote(buffer.uri, str(tmp_path / "builders"))
    assert build_and_report(buffer.uri, str(tmp_path / "builders")) == ray.get(there) == 80
    assert len(os.listdir(tmp_path / "builders")) == 1
    assert buffer.count() == 80


def test_real_step_traces(make_buffer, shared_data):
    from rapo_rllib.traces.recorded import read_trace_file

    path = shared_data / "traces" / "gsm8k_train_human_calc.jsonl.gz"
    buffer = make_buffer(traces=str(path))
    assert ensure_built(buffer, lambda: read_trace_file(path), max_traces=100) == 100
    first = next(read_trace_file(path))
    found = buffer.retrieve([HistoryQuery(first.question.text, first.steps[0])])[0][0]
    assert found.trace.text == first.steps[1]
    assert found.similarity > 0.99
