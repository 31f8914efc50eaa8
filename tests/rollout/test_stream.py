"""A stream of groups on a scripted engine: no waiting, weights that change on the way, groups that are given up."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from scripted import ByteTokenizer, CalculatorEnv, ScriptedEngine
from test_loop import solve

from rapo_rllib.env_runner.metrics import staleness_metrics
from rapo_rllib.errors import EngineError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.stream import RolloutStream
from rapo_rllib.settings import ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, Trajectory, TrajectoryGroup

QUESTIONS = [Question(id=f"q{i}", text=f"What is {i} + 1?", answer=str(i + 1)) for i in range(4)]


class Setting:
    """A loop over a scripted engine; tools wait at the gate of their question."""

    def __init__(self, latency: Any = lambda request: 1, **settings: Any) -> None:
        self.engine = ScriptedEngine(solve, latency)
        self.closed: dict[str, threading.Event] = {}
        self.called: list[str] = []
        chat = ChatProtocol(ByteTokenizer(), ProtocolSettings(), "Solve.")
        envs = EnvPool(lambda: CalculatorEnv(self.on_call), "answer")
        options = {"group_size": 2, "num_hybrid": 0, "max_response_tokens": 400, **settings}
        self.loop = RolloutLoop(self.engine, chat, envs, RolloutSettings(**options))
        self.stream = RolloutStream(self.loop)
        self.done: dict[int, TrajectoryGroup] = {}

    def on_call(self, text: str) -> None:
        self.called.append(text)
        for expression, event in self.closed.items():
            if f">{expression} +" in text:
                assert event.wait(20)

    def close_gate(self, number: int) -> threading.Event:
        self.closed[str(number)] = threading.Event()
        return self.closed[str(number)]

    def begin(self, *numbers: int) -> None:
        self.stream.begin([(10 + n, QUESTIONS[n]) for n in numbers], retrieval_prob=0.0)

    def tick_until(self, condition: Any) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.stream._run.tick()

    def advance(self, until: Any = lambda: False, seconds: float = 20.0) -> None:
        """Until so many groups are done, or so long."""
        while self.stream.under_way and not until():
            found = self.stream.advance(seconds)
            self.done.update(found)
            if not found:
                return


@pytest.fixture
def setting() -> Any:
    made = Setting()
    yield made
    for event in made.closed.values():
        event.set()
    made.loop.close()


def test_a_group_leaves_when_it_is_complete_whatever_others_wait_for(setting: Setting) -> None:
    gate = setting.close_gate(0)
    setting.begin(0, 1)
    setting.advance(lambda: 11 in setting.done)
    assert list(setting.done) == [11] and setting.stream.under_way == [10]
    setting.begin(2)  # joins
    setting.advance(lambda: 12 in setting.done)
    assert setting.stream.under_way == [10]
    gate.set()
    setting.advance()
    assert sorted(setting.done) == [10, 11, 12] and setting.stream.under_way == []
    assert all(t.correct and t.end == "answer" for group in setting.done.values() for t in group.trajectories)
    stats = setting.stream.stats.take()
    assert (stats.ends["answer"], stats.tool_calls["python"]) == (6, 6) and stats.seconds > 0
    assert setting.stream.stats.take().ends == {}


def test_a_trajectory_goes_on_with_new_weights_and_knows_which_token_is_whose(setting: Setting) -> None:
    gate = setting.close_gate(0)
    setting.begin(0)
    setting.tick_until(lambda: len(setting.called) == 2)  # both have written their call, and wait for the tool
    setting.engine.policy_version = 3
    gate.set()
    setting.advance()
    group = setting.done[10]
    assert group.policy_version == 0
    for trajectory in group.trajectories:
        _, second = trajectory.steps
        assert trajectory.policy_version == 0 and trajectory.version_changes == [(second.start, 3)]
        versions = trajectory.token_versions
        assert versions == [0] * second.start + [3] * (len(versions) - second.start)
    policy = [step.stop - step.start for step in group.trajectories[0].steps]
    mean = (3 * policy[0] + 0 * policy[1]) / sum(policy)
    assert staleness_metrics(group.trajectories, version=3) == {
        "staleness_mean": pytest.approx(mean),
        "staleness_max": 3,
        "swapped_share": 1,
    }


def test_weights_that_change_within_a_step() -> None:
    setting = Setting(latency=lambda request: 4, group_size=1)
    setting.engine.changes_at_poll = {2: 5}
    setting.begin(1)
    setting.advance()
    for trajectory in setting.done[11].trajectories:
        first, second = trajectory.steps
        ((start, version),) = trajectory.version_changes
        assert version == 5 and 0 < start < first.stop  # after half of its polls
        assert trajectory.token_versions[second.start] == 5
    setting.loop.close()


def test_names_and_coins_are_those_of_a_run_of_its_own(setting: Setting) -> None:
    setting.begin(0, 1)
    setting.advance()
    streamed = [request.request_id for request in setting.engine.requests]
    seeds = [request.seed for request in setting.engine.requests]
    other = Setting()
    other.loop.run(QUESTIONS[:2])
    assert sorted(streamed) == sorted(request.request_id for request in other.engine.requests)
    assert sorted(seeds) == sorted(request.seed for request in other.engine.requests)
    setting.stream.begin([(20, QUESTIONS[0]), (21, QUESTIONS[0])], 0.0)
    setting.advance()
    names = [request.request_id for request in setting.engine.requests]
    assert len(set(names)) == len(names)  # the second and the third copy have others
    other.loop.close()


def test_a_group_that_is_given_up_leaves_nothing(setting: Setting) -> None:
    gate = setting.close_gate(0)
    setting.engine.latency = lambda request: 1 if b"0 + 1" in bytes(request.token_ids) else 10**6  # q1 never ends
    setting.begin(0, 1)
    setting.tick_until(lambda: len(setting.called) == 2 and setting.engine.num_unfinished == 2)
    setting.stream.give_up([10, 11, 99])
    assert setting.engine.num_unfinished == 0 and setting.stream.under_way == []
    discarded = setting.stream.stats.take()
    assert discarded.discarded_tokens == 2 * len("<python>0 + 1</python>") and discarded.ends == {}
    requests = len(setting.engine.requests)
    gate.set()
    setting.begin(2)
    setting.engine.latency = lambda request: 1
    setting.advance()
    assert sorted(setting.done) == [12]
    assert all(request.request_id.startswith("0/q2/") for request in setting.engine.requests[requests:])
    setting.tick_until(lambda: not setting.stream._run._coroutines)  # their tools have returned, and they end there


def test_a_run_of_the_same_engine_between_two_calls(setting: Setting) -> None:
    """An evaluation: what the engine finishes for the stream meanwhile is kept for it."""
    setting.engine.latency = lambda request: 10**9  # until all four are there, however late their environments begin
    setting.begin(0, 1)
    while setting.engine.num_unfinished < 4:
        setting.stream._run.tick()
    setting.engine.latency = lambda request: 50
    setting.engine._running = {key: (request, 50) for key, (request, _) in setting.engine._running.items()}
    evaluated = setting.loop.run(QUESTIONS[2:], greedy=True, group_size=1)
    assert [group.trajectories[0].correct for group in evaluated] == [True, True]
    assert len(setting.loop.finished) == 4  # first steps of the stream's trajectories
    setting.advance()
    assert sorted(setting.done) == [10, 11] and setting.loop.finished == {}
    assert all(t.correct for group in setting.done.values() for t in group.trajectories)


def test_an_engine_that_breaks_ends_the_stream(setting: Setting) -> None:
    setting.engine.fail_at_poll = 2
    setting.begin(0, 1)
    with pytest.raises(EngineError, match="the engine broke"):
        setting.advance()
    assert setting.stream.under_way == [] and setting.engine.num_unfinished == 0


def test_versions_of_tokens() -> None:
    trajectory = Trajectory("q", (), policy_version=3)
    trajectory.append_policy([1, 2], [0.0] * 2, [0.0] * 2, [3, 4])
    trajectory.append_observation([5, 6])
    branch = trajectory.fork(1)
    trajectory.append_policy([7, 8, 9], [0.0] * 3, [0.0] * 3, [4, 6, 6])
    assert trajectory.token_versions == [3, 4, 4, 4, 4, 6, 6] and trajectory.version_changes == [(1, 4), (5, 6)]
    branch.append_policy([7], [0.0], [0.0])
    assert branch.token_versions == [3, 4, 4, 4, 4] and branch.newest_version == 4
    with pytest.raises(ValueError, match="2 tokens, 2 logprobs, 2 entropies, 1 versions"):
        branch.append_policy([1, 2], [0.0] * 2, [0.0] * 2, [4])
