"""A stream of groups on a scripted engine: no waiting, weights that change on the way, groups that are given up."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import ByteTokenizer, CalculatorEnv, OneTrace, solve
from test_branching import MoodyEngine, unsure_after_a_result

from rapo_rllib.env_runner.metrics import staleness_metrics
from rapo_rllib.env_runner.stream.runner import Conditions, Order, RunnerStream
from rapo_rllib.errors import EngineError
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.stream import RolloutStream
from rapo_rllib.settings import BranchingSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question, TokenKind, Trajectory, TrajectoryGroup

QUESTIONS = [Question(id=f"q{i}", text=f"What is {i} + 1?", answer=str(i + 1)) for i in range(4)]


class Setting:
    """A loop over a scripted engine; tools wait at the gate of their question."""

    def __init__(self, latency: Any = lambda request: 1, retriever: Retriever | None = None, **settings: Any) -> None:
        self.engine = MoodyEngine(solve, unsure_after_a_result)
        self.engine.latency = latency
        self.closed: dict[str, threading.Event] = {}
        self.called: list[str] = []
        chat = ChatProtocol(ByteTokenizer(), ProtocolSettings(), "Solve.")
        envs = EnvPool(lambda: CalculatorEnv(lambda text: self.on_call(text)), "answer")  # a branch copies it
        options = {"group_size": 2, "num_hybrid": 0, "max_response_tokens": 400, **settings}
        self.loop = RolloutLoop(self.engine, chat, envs, RolloutSettings(**options), retriever)
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

    def begin(self, *numbers: int, retrieval_prob: float = 0.0) -> None:
        self.stream.begin([(10 + n, QUESTIONS[n]) for n in numbers], retrieval_prob)

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


POLLS = 4  # of a step
FIRST, SECOND, BRANCH = (range(start, start + POLLS) for start in (0, POLLS, 2 * POLLS))  # one step after another
ONE_SWAP = [{poll: 3} for poll in (*FIRST, *SECOND)]
TWO_SWAPS = [{poll: 3, later: 7} for poll in (*FIRST, *SECOND) for later in range(poll + 1, 2 * POLLS)]
IN_BRANCH = [{poll: 3, later: 7} for poll in BRANCH for later in range(poll + 1, 3 * POLLS)]


def swapped(swaps: dict[int, int], retrieval_prob: float = 0.0, **settings: Any) -> list[Trajectory]:
    """What a group becomes whose weights change at these polls; one request runs at a time."""
    setting = Setting(lambda request: POLLS, **settings)
    setting.engine.changes_at_poll = swaps
    setting.begin(1, retrieval_prob=retrieval_prob)
    setting.advance()
    setting.loop.close()
    assert (setting.engine.polls, setting.done[11].policy_version) == (POLLS * len(setting.engine.requests), 0)
    return setting.done[11].trajectories


def check_versions(trajectory: Trajectory, swaps: dict[int, int], *steps: range) -> None:
    """Each token has the version of the poll that wrote it, of which each writes as many; what follows a step, its last one."""
    versions, expected = trajectory.token_versions, list[int]()
    for polls, step in zip(steps, trajectory.steps, strict=True):
        expected += expected[-1:] * (step.start - len(expected))
        count = step.stop - step.start
        written = [polls[token * POLLS // count] for token in range(count)]
        expected += [max((at, version) for at, version in ((-1, 0), *swaps.items()) if at <= poll)[1] for poll in written]
    assert versions == expected + expected[-1:] * (len(versions) - len(expected))


@pytest.mark.parametrize("swaps", [*ONE_SWAP, *TWO_SWAPS], ids=str)
def test_no_token_has_a_wrong_version_wherever_weights_change(swaps: dict[int, int]) -> None:
    (trajectory,) = swapped(swaps, group_size=1)
    check_versions(trajectory, swaps, FIRST, SECOND)


@pytest.mark.parametrize("swaps", [*ONE_SWAP, *IN_BRANCH, *({poll: 3} for poll in BRANCH)], ids=str)
def test_a_branch_has_the_versions_of_what_it_shares_and_its_own(swaps: dict[int, int]) -> None:
    origin, branch = swapped(swaps, group_size=2, branching=BranchingSettings(initial=1))
    assert 0 < branch.own_start < branch.steps[1].stop and branch.steps[0].stop <= branch.own_start
    check_versions(origin, swaps, FIRST, SECOND)
    check_versions(branch, swaps, FIRST, BRANCH)


@pytest.mark.parametrize("swaps", ONE_SWAP, ids=str)
def test_what_is_retrieved_between_two_steps_moves_no_version(swaps: dict[int, int]) -> None:
    retriever = Retriever(OneTrace(), selection="nearest", top_k=1)
    (trajectory,) = swapped(swaps, 1.0, retriever=retriever, group_size=1, num_hybrid=1)
    (retrieval,) = trajectory.retrievals
    assert set(trajectory.kinds[retrieval.start : retrieval.stop]) == {TokenKind.RETRIEVED}
    check_versions(trajectory, swaps, FIRST, SECOND)


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


@pytest.fixture
def evaluated(setting: Setting) -> Setting:
    """A stream whose engine has finished the first steps of two groups during an evaluation, which kept them."""
    setting.engine.latency = lambda request: 10**9  # until all four are there, however late their environments begin
    setting.begin(0, 1)
    while setting.engine.num_unfinished < 4:
        setting.stream._run.tick()
    setting.engine.latency = lambda request: 50
    setting.engine._running = {key: (request, 50) for key, (request, _) in setting.engine._running.items()}
    groups = setting.loop.run(QUESTIONS, greedy=True, group_size=1)  # with the ids of those under way, too
    assert [group.trajectories[0].correct for group in groups] == [True] * 4
    assert len(setting.loop.finished) == 4  # first steps of the stream's trajectories
    return setting


def test_a_run_of_the_same_engine_between_two_calls(evaluated: Setting) -> None:
    evaluated.advance()
    assert sorted(evaluated.done) == [10, 11] and evaluated.loop.finished == {}
    assert all(t.correct for group in evaluated.done.values() for t in group.trajectories)


def test_a_stream_that_is_closed_leaves_no_steps_for_the_next_one(evaluated: Setting) -> None:
    """Which asks by the same names, if its weights have the same version."""
    evaluated.stream.close()
    assert evaluated.loop.finished == {}
    evaluated.stream, done = RolloutStream(evaluated.loop), len(evaluated.engine.requests)
    evaluated.begin(0)
    evaluated.engine.script = lambda so_far: "<answer>none</answer>"
    evaluated.advance()
    names = [request.request_id for request in evaluated.engine.requests]
    assert set(names[done:]) < set(names[:done])
    assert [len(t.steps) for t in evaluated.done[10].trajectories] == [1, 1]


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


def test_an_order_that_comes_while_new_weights_are_on_their_way_sets_the_view_of_the_buffer() -> None:
    """It is sent once; the questions wait."""
    made, seen = Setting(retriever=Retriever(OneTrace(), selection="nearest", top_k=1)), []
    runner = SimpleNamespace(
        loop=made.loop,
        engine=SimpleNamespace(weights=SimpleNamespace(whole=False), num_unfinished=0),
        settings=SimpleNamespace(objective=SimpleNamespace(shown_steps="retrieved")),
        set_buffer_view=seen.append,
        engine_name=lambda: "first",
        policy_version=3,
    )
    view: Any = object()
    answer = RunnerStream(runner, None).work(Order(Conditions(0.5, buffer_view=view), [(7, QUESTIONS[0])]))
    made.loop.close()
    assert seen == [view] and answer.under_way == [7] and not answer.complete
