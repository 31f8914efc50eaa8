"""Agents with a loop of their own against a scripted engine: real HTTP, the `openai` client, real templates."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import own_agents
import pytest
from calculator_turns import CALCULATOR, call, solve
from chat_templates import FAMILIES, ScriptedTurns, tokenizer_of
from pages import REPOSITORY, blocks
from places import SUPPORT

from rapo_rllib.batching.training_batch import TrainingBatch
from rapo_rllib.endpoint.env import AgentEnv
from rapo_rllib.endpoint.loop import MOST_CHATS, Agents
from rapo_rllib.env_runner.env_runner import RAPOEnvRunner
from rapo_rllib.env_runner.episodes import EpisodeObserver
from rapo_rllib.env_runner.metrics import SampleResult
from rapo_rllib.env_runner.stream.runner import RunnerStream
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import RequestError
from rapo_rllib.evaluation.held_out import evaluation_metrics
from rapo_rllib.protocol.make import make_protocol
from rapo_rllib.rewards import Score
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.episode import Episode
from rapo_rllib.rollout.loop import Observer, RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.rollout.stream import RolloutStream
from rapo_rllib.settings import ObjectiveSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import HistoryQuery, Question, RetrievedTrace, StepTrace, TokenKind, Trajectory

QUESTION = Question("q", "What is 3 + 5 + 1?", "9")
SETTINGS = ProtocolSettings(format="native")
WITH_SUPPORT = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
TRACE = StepTrace(id="t1", question="", history="", text="<python>9</python>", reward=1.0, source="expert")


def nine(so_far: str) -> str:
    return "\\boxed{9}"


class OneTrace:
    """Answers every query with the same trace."""

    def retrieve(self, queries: Sequence[HistoryQuery], top_k: int) -> list[list[RetrievedTrace]]:
        return [[RetrievedTrace(TRACE, 0.9)] for _ in queries]


class Made:
    """A loop over agents, with one tokenizer and a script."""

    def __init__(
        self,
        tokenizer: Any,
        script: Callable[[str], str] = solve,
        latency: int = 1,
        env: Any = (),
        make_reader: Any = None,
        **rollout: Any,
    ) -> None:
        config = {"dataset": "unread.jsonl", "scorer": "math", "protocol": SETTINGS, **dict(env)}
        self.tokenizer, self.source = tokenizer, OneTrace()
        self.chat = make_protocol(tokenizer, SETTINGS, AgentEnv(config))
        self.agents = Agents(self.chat, make_reader)  # type: ignore[arg-type]
        self.engine = ScriptedTurns(tokenizer, script)
        self.engine.latency = lambda request: latency
        settings = RolloutSettings(**{"group_size": 2, "num_hybrid": 0, "max_response_tokens": 900, **rollout})
        retriever = Retriever(self.source, selection="nearest", top_k=1)
        pool = EnvPool(lambda: AgentEnv(config), "answer")
        self.loop = RolloutLoop(self.engine, self.chat, pool, settings, retriever, agents=self.agents)

    def run(self, chance: float = 0.0, questions: int = 1) -> list[Trajectory]:
        asked = [Question(f"q{index}", QUESTION.text, QUESTION.answer) for index in range(questions)]
        groups = self.loop.run(asked, retrieval_prob=chance)
        self.groups = groups
        for group in groups:
            for trajectory in group.trajectories:
                for one in trajectory.sequences:
                    self.check(one)
        return [trajectory for group in groups for trajectory in group.trajectories]

    def check(self, one: Trajectory) -> None:
        """Every token says who wrote it, and only what the policy wrote is trained."""
        assert len(one.kinds) == len(one.token_ids) == len(one.logprobs) == len(one.entropies)
        policy = [i for i, kind in enumerate(one.kinds) if kind == TokenKind.POLICY]
        assert policy == [i for step in one.steps for i in range(step.start, step.stop)]
        assert all(logprob == 0 for logprob, kind in zip(one.logprobs, one.kinds, strict=True) if kind)


@pytest.fixture
def make(smollm2: Path) -> Any:
    made: list[Made] = []

    def make_one(agent: str = "loop", family: str = "qwen25", env: Any = (), **more: Any) -> Made:
        named = {"agent": f"own_agents:{agent}"} if agent else {}
        made.append(Made(tokenizer_of(family, smollm2), env={**named, **dict(env)}, **more))
        return made[-1]

    yield make_one
    for one in made:
        one.loop.close()


def questions_loop(made: Made, **rollout: Any) -> RolloutLoop:
    """The same policy in an environment of ours, with the same tool."""
    config = {"max_tool_calls": 5, "scorer": "math", "tools": ["calculator"], "protocol": SETTINGS}
    probe = ToolEnv(config)
    probe.tool_schemas = [CALCULATOR]
    chat = make_protocol(made.tokenizer, SETTINGS, probe)
    settings = RolloutSettings(**{"group_size": 2, "num_hybrid": 0, "max_response_tokens": 900, **rollout})
    engine, pool = ScriptedTurns(made.tokenizer, solve), EnvPool(lambda: ToolEnv(config), "answer")
    return RolloutLoop(engine, chat, pool, settings, Retriever(OneTrace(), selection="nearest", top_k=1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("agent", ["loop", "with_tools_streamed"])
def test_tokens_and_masks_are_those_of_questions(make: Any, family: str, agent: str) -> None:
    made = make(agent, family, num_hybrid=1)
    reference = questions_loop(made, num_hybrid=1)
    (expected,) = reference.run([Question("q0", QUESTION.text, QUESTION.answer)], retrieval_prob=1.0)
    found = made.run(chance=1.0)
    for one, other in zip(found, expected.trajectories, strict=True):
        for name in ("prompt_ids", "token_ids", "kinds", "logprobs", "entropies", "text", "reward", "correct", "turn_ended"):
            assert getattr(one, name) == getattr(other, name), name
        assert [(s.start, s.stop, s.text, s.record, s.tool, s.observation) for s in one.steps] == [
            (s.start, s.stop, s.text, s.record, s.tool, s.observation) for s in other.steps
        ]
        assert [(r.start, r.stop) for r in one.retrievals] == [(r.start, r.stop) for r in other.retrievals]
        assert (one.end, one.others) == ("answer", []) and len(one.steps) == 3
    seeds = [[request.seed for request in engine.requests] for engine in (made.engine, reference.engine)]
    assert sorted(seeds[0]) == sorted(seeds[1])  # so that it is the same sample
    assert len(found[1].retrievals) == 2 and not found[0].retrievals
    reference.close()


def test_a_rewritten_history_is_a_sequence_of_its_own(make: Any) -> None:
    made = make("rewrites", script=lambda so_far: nine("") if "tool_response" in so_far else call("3 + 5"))
    for trajectory in made.run():
        (branch,) = trajectory.others
        first = trajectory.steps[0]
        assert branch.prompt_ids == trajectory.prompt_ids
        assert branch.token_ids[: first.stop] == trajectory.token_ids[: first.stop]
        assert set(branch.kinds[: first.stop]) == {TokenKind.GIVEN}  # trained once, where it was generated
        assert "as everybody knows" in made.tokenizer.decode(trajectory.token_ids)
        assert "as everybody knows" not in made.tokenizer.decode(branch.token_ids)
        assert (len(trajectory.steps), len(branch.steps), trajectory.reward) == (2, 1, 1.0)
        assert trajectory.num_generated == sum(step.stop - step.start for step in trajectory.own_steps)
        assert len(trajectory.own_steps) == 3


def test_conversations_side_by_side_are_trained_with_their_trajectory(make: Any) -> None:
    made = make("async_loop", script=lambda so_far: "eight" if "First." in so_far else "nine")
    trajectories = made.run()
    for trajectory in trajectories:
        (other,) = trajectory.others
        assert other.prompt_ids != trajectory.prompt_ids and trajectory.reward == 0.5
        assert len({tuple(one.prompt_ids) for one in trajectory.sequences}) == 2
    trajectories[0].reward = 1.0
    batch = TrainingBatch.from_groups(made.groups, ObjectiveSettings())
    (group,) = batch.groups
    assert len(group.samples) == 4
    for trajectory, samples in zip(trajectories, (group.samples[:2], group.samples[2:]), strict=True):
        trained = sum(one.num_trained for one in trajectory.sequences)
        for one, sample in zip(trajectory.sequences, samples, strict=True):
            assert [*group.prompt_ids, *sample.token_ids] == [*one.prompt_ids, *one.token_ids]
            assert sample.num_loss_tokens == one.num_trained and sample.weight == pytest.approx(1 / (2 * trained))
            (advantage,) = {round(float(a), 4) for a in sample.advantages[sample.loss_mask]}
            assert (advantage > 0) == (trajectory is trajectories[0])


def test_a_retried_request_is_one_step(make: Any) -> None:
    made = make("disconnects", script=nine, latency=30)
    made.engine.poll = slowed(made.engine.poll, 0.02)
    for trajectory in made.run():
        assert (trajectory.end, len(trajectory.steps), trajectory.others, trajectory.reward) == ("answer", 1, [], 1.0)


def slowed(poll: Callable[[], Any], seconds: float) -> Callable[[], Any]:
    def slow() -> Any:
        time.sleep(seconds)
        return poll()

    return slow


def test_a_turn_that_nobody_got_is_not_trained(make: Any) -> None:
    made = make("leaves_for_good", script=nine, latency=20)
    made.engine.poll = slowed(made.engine.poll, 0.02)
    for trajectory in made.run():
        assert trajectory.end == "answer" and len(trajectory.steps) == 1
        assert made.engine.num_unfinished == 0
        assert trajectory.num_generated == trajectory.steps[0].stop


class Stopping(ScriptedTurns):
    """Writes up to a stop string, where one is asked for."""

    def _complete(self, request: GenerationRequest) -> Completion:
        if not request.stop:
            return super()._complete(request)
        text = f"Thought: 8\n{request.stop[0]}"
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        n = len(ids)
        return Completion(request.request_id, ids, [-0.5] * n, [1.0] * n, text, "", "stop", self.policy_version)


def test_a_turn_that_the_agent_ends(make: Any) -> None:
    made = make("stops")
    made.loop.engine = Stopping(made.tokenizer, nine)
    for trajectory in made.run():
        first = trajectory.steps[0].stop
        assert (trajectory.end, trajectory.reward, len(trajectory.steps), trajectory.others) == ("answer", 1.0, 2, [])
        assert trajectory.token_ids[first] == made.chat.end_ids[0] and trajectory.kinds[first] == TokenKind.OBSERVATION


@pytest.mark.parametrize(
    ("agent", "env", "ended"),
    [
        ("floods", {"max_requests": 5}, ("length", 0.0, 5)),  # running over must not pay
        ("asks_too_much", {}, ("answer", 1.0, 2)),
        ("asks_too_much", {"agent_options": {"then": "raises"}}, ("length", 0.0, 1)),
        # an answer behind a refusal is not cut
        ("asks_too_much", {"agent_options": {"then": "returns", "words": 1500}}, ("answer", 1.0, 1)),
    ],
)
def test_an_agent_that_asks_for_more_than_there_is(make: Any, agent: str, env: Any, ended: tuple[str, float, int]) -> None:
    made = make(agent, script=nine, env=env)
    for trajectory in made.run():
        assert (trajectory.end, trajectory.reward, sum(len(one.steps) for one in trajectory.sequences)) == ended
        assert agent == "floods" or not trajectory.others
        assert trajectory.end == "length" or trajectory.unfitting_tokens == 0
    assert made.engine.num_unfinished == 0


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("never_asks", "did it ask at its base_url?"),
        ("crashes", "lost my keys"),
        ("returns_nothing", "the agent returned nothing"),
        ("hangs", "the agent has not ended in 0.5 s"),
    ],
)
def test_what_fails_costs_its_trajectory(make: Any, agent: str, said: str) -> None:
    made = make(agent, script=nine, env={"agent_timeout_s": 0.5 if agent == "hangs" else 60})
    for trajectory in made.run():
        assert trajectory.end == "error" and said in trajectory.error
    assert made.loop.stats.deadlines == ({"agent": 2} if agent == "hangs" else {})


def block_of_the_page(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a block of Python of the page the module `my_agent`."""
    module = ModuleType("my_agent")
    exec(compile(blocks(REPOSITORY / "docs" / "agents.md", "python")[number], "docs/agents.md", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "my_agent", module)


def test_the_agent_of_the_page(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    block_of_the_page(0, monkeypatch)
    for trajectory in make("", script=nine, env={"agent": "my_agent:run"}).run():
        assert (trajectory.end, trajectory.reward) == ("answer", 1.0)


def test_the_program_of_the_page(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function of the page starts it, and passes its answer, or its failure, on."""
    block_of_the_page(1, monkeypatch)
    program = tmp_path / "my-agent"
    loop = "import os, sys, own_agents; print(own_agents.loop(sys.stdin.read(), os.environ['OPENAI_BASE_URL']))"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", WITH_SUPPORT)
    for code, told in ((loop, ("answer", 1.0, 3)), ("raise SystemExit(3)", ("error", 0.0, 0))):
        program.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
        program.chmod(0o700)
        for trajectory in make("", env={"agent": "my_agent:run"}, group_size=1).run():
            assert (trajectory.end, trajectory.reward, len(trajectory.steps)) == told


def test_64_trajectories_at_once(make: Any) -> None:
    made = make(latency=3, group_size=8)
    trajectories = made.run(questions=8)
    assert [(t.end, len(t.steps), t.reward) for t in trajectories] == [("answer", 3, 1.0)] * 64
    assert len({tuple(t.token_ids) for t in trajectories}) == 1


def test_agents_in_evaluation(make: Any) -> None:
    """As `evaluate_on_env_runners` asks: each question once, greedy, without retrieval; an answer or a number may be right."""
    asked = [Question(f"q{number}", QUESTION.text, number, benchmark="sums") for number in "98"]
    made = make(num_hybrid=2)
    groups = made.loop.run(asked, retrieval_prob=0.0, greedy=True, group_size=1)
    assert [[(t.end, t.correct, t.retrievals) for t in group.trajectories] for group in groups] == [
        [("answer", right, [])] for right in (True, False)
    ]
    assert {request.temperature for request in made.engine.requests} == {0.0}
    values = evaluation_metrics(SampleResult(groups))
    assert (values["accuracy"], values["sums/accuracy"], values["num_episodes"]) == (0.5, 0.5, 2)
    paid = make("async_loop", script=lambda so_far: "9").loop.run(asked, greedy=True, group_size=1)
    assert [group.trajectories[0].correct for group in paid] == [True, True]  # its reward is above 0


def test_weights_change_between_two_turns(make: Any) -> None:
    def change_and_solve(so_far: str) -> str:
        made.engine.policy_version = int("3 + 5" in so_far.rpartition(QUESTION.text)[2])
        return solve(so_far)

    made = make(script=change_and_solve, group_size=1)
    stream = RolloutStream(made.loop)
    stream.begin([(0, QUESTION)], 0.0)
    while not (complete := stream.advance(1.0)):
        pass
    ((_, group),) = complete
    (trajectory,) = group.trajectories
    assert trajectory.end == "answer" and trajectory.token_versions[0] == 0
    assert trajectory.version_changes == [(trajectory.steps[1].start, 1)]


def test_a_group_that_is_given_up_leaves_nothing(make: Any) -> None:
    made = make(latency=10**6)
    stream = RolloutStream(made.loop)
    stream.begin([(0, QUESTION)], 0.0)
    while made.engine.num_unfinished < 2:
        stream.advance(0.1)
    stream.give_up([0])
    stream.begin([(1, QUESTION)], 0.0)
    stream.advance(1.0)
    assert stream.under_way == [1] and made.engine.num_unfinished == 2  # those of the group that is wanted
    stream.close()
    assert made.engine.num_unfinished == 0


def test_the_engine_breaks_and_nobody_hangs(make: Any) -> None:
    made = make(latency=3)
    made.engine.fail_at_poll = 2
    with pytest.raises(Exception, match="the engine broke"):
        made.run()
    made.engine.fail_at_poll = None
    assert {t.end for t in made.run()} == {"answer"}


def test_what_outlives_its_agent_writes_nothing(make: Any) -> None:
    """The engine has written it in the tick in which the agent ends; or it is looked for while the agent ends."""
    own_agents.written.clear()
    made = make("ends_while_it_asks", group_size=1)
    poll = made.engine.poll

    def polled() -> list[Completion]:
        done = poll()
        if len(made.engine.requests) == 2 and done:
            let_it_end()
        return done

    made.engine.poll = polled
    (trajectory,) = made.run()
    assert (trajectory.end, trajectory.reward, len(trajectory.steps), len(made.engine.requests)) == ("answer", 1.0, 1, 2)
    own_agents.written.clear()
    made = make("ends_while_it_asks", group_size=1, num_hybrid=1)
    retrieve = made.source.retrieve
    made.source.retrieve = lambda *asked: let_it_end() or retrieve(*asked)
    (trajectory,) = made.run(chance=1.0)
    assert (trajectory.end, trajectory.reward, len(trajectory.steps), len(made.engine.requests)) == ("answer", 1.0, 1, 1)
    assert not trajectory.retrievals and TokenKind.RETRIEVED not in trajectory.kinds


def let_it_end() -> None:
    own_agents.written.set()
    time.sleep(0.5)


def test_the_return_of_an_agent_that_gives_up_a_request(make: Any) -> None:
    """Its episode has the reward, whatever it asked for behind the turn that is its last."""
    env = {"agent_options": {"stays_s": 0.0}}
    made = make("leaves_for_good", script=nine, env=env, group_size=1)
    made.engine.latency = lambda request: 1 if len(made.engine.requests) == 1 else 10**6
    made.engine.poll = slowed(made.engine.poll, 0.001)
    ends: list[tuple[str, int]] = []

    class Noting(Observer):
        def stepped(self, episode: Episode, info: Mapping[str, Any], end: str) -> None:
            ends.append((end, len(episode.trajectory.steps)))

    ((trajectory,),) = [group.trajectories for group in made.loop.run([QUESTION], observer=Noting())]
    assert (trajectory.end, trajectory.reward, ends) == ("answer", 1.0, [("answer", 1)])


def test_the_return_of_an_agent_whose_last_turn_nobody_got(make: Any) -> None:
    """What is told of the first turn ends with it, when the next has been written; and that is left out at the end."""
    made = make("leaves_for_good", script=nine, latency=20, group_size=1)
    made.engine.poll = slowed(made.engine.poll, 0.02)
    observer = EpisodeObserver(SimpleNamespace(episode=lambda *told: None, environment_created=lambda env: None))  # type: ignore[arg-type]
    (episode,) = observer.take(made.loop.run([QUESTION], observer=observer))
    assert (episode.get_return(), episode.is_terminated) == (1.0, True)


def test_tools_that_are_not_to_be_called_stay_in_the_prompt(make: Any) -> None:
    for trajectory in make("sums_up", script=lambda so_far: call("3 + 5")).run():
        assert (trajectory.others, len(trajectory.steps), trajectory.end) == ([], 2, "answer")
        assert [step.tool for step in trajectory.steps] == ["calculator", None]


def stepwise(predicted: Any, question: Question, episode: Any) -> Score:
    return Score(1.0, True, steps=(0.25,))


def test_rewards_of_steps_are_the_trajectorys(make: Any) -> None:
    """The scorer sees one step, which is not the first of the agent's."""
    for trajectory in make(env={"scorer": "test_agents:stepwise"}).run():
        assert (trajectory.end, trajectory.reward, trajectory.earlier) == ("answer", 1.25, {})
        assert [step.reward for step in trajectory.steps] == [0.0, 0.0, 1.25]


def test_forms_of_turns_are_kept_for_the_newest_tools(make: Any) -> None:
    made = make()
    for index in range(MOST_CHATS + 6):
        schema = {**CALCULATOR, "function": {**CALCULATOR["function"], "name": f"calculator{index}"}}
        newest = made.agents.chat_with([schema])
    assert made.agents._chat_with.cache_info().currsize == MOST_CHATS and made.agents.chat_with([schema]) is newest


def test_an_env_runner_that_stops_ends_what_is_under_way(make: Any) -> None:
    made, closed = make(latency=10**6), []
    runner = object.__new__(RAPOEnvRunner)
    runner.loop, runner.engine, runner._layers = made.loop, SimpleNamespace(close=lambda: closed.append("engine")), None
    runner._stream = RunnerStream(runner, None)
    runner._stream._stream.begin([(0, QUESTION)], 0.0)
    while made.engine.num_unfinished < 2:
        runner._stream._stream.advance(0.1)
    runner.stop()
    assert made.engine.num_unfinished == 0 and closed == ["engine"]


def test_an_agent_that_ends_after_its_group_was_given_up(make: Any) -> None:
    own_agents.written.clear()
    made = make("ends_while_it_asks", group_size=1)
    made.engine.latency = lambda request: 1 if len(made.engine.requests) == 1 else 10**6
    told: list[str] = []

    class Noting(Observer):
        def given_up(self, episode: Episode) -> None:
            told.append("given up")

        def ended(self, episode: Episode) -> None:
            told.append("ended")

    stream = RolloutStream(made.loop, Noting())
    stream.begin([(0, QUESTION)], 0.0)
    while len(made.engine.requests) < 2:
        stream.advance(0.1)
    let_it_end()  # before it is told that nobody wants it
    stream.give_up([0])
    while not told:
        stream._run.tick()
    assert told == ["given up"]


def test_rows_may_have_tools_of_their_own(tmp_path: Path) -> None:
    row = {"question": "3 + 5?", "answer": "8", "tools": ["search"]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    config = {"agent": "own_agents:loop", "dataset": str(tmp_path / "rows.jsonl"), "protocol": SETTINGS}
    assert AgentEnv.questions(config, "train")[0].tools == ("search",)


def test_a_model_without_tools_is_refused_once(smollm2: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With one line in the log, and each of its requests."""
    tokenizer = tokenizer_of("qwen25", smollm2)
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.chat_template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    env = AgentEnv({"agent": "own_agents:loop", "dataset": "unread.jsonl", "protocol": SETTINGS})
    agents = Agents(make_protocol(tokenizer, SETTINGS, env), None)  # type: ignore[arg-type]
    for tool in (CALCULATOR, {**CALCULATOR, "function": {**CALCULATOR["function"], "name": "other"}}):
        with pytest.raises(RequestError, match=r"the tools are refused: .* does not show tools"):
            agents.chat_with([tool])
    assert caplog.text.count("an agent's tools are refused, which fails each of its trajectories") == 1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "must be an import path, package.module:function"),
        ({"agent": "no_such_module:run"}, "cannot import 'no_such_module:run'"),
        ({"agent": "own_agents"}, "must be an import path, package.module:function"),
        ({"agent": "own_agents:wants"}, "'own_agents:wants', with agent_options: missing a required argument: 'level'"),
        ({"agent": "own_agents:loop", "agent_options": {"turnss": 3}}, "got an unexpected keyword argument 'turnss'"),
        ({"agent": "own_agents:loop", "agent_options": {"base_url": "x"}}, "multiple values for keyword argument 'base_url'"),
        ({"agent": "own_agents:loop", "tools": ["python"]}, "an agent brings its own tools"),
        ({"agent": "own_agents:loop", "max_tool_calls": 5}, "env_config.max_tool_calls = 5"),
        ({"agent": "own_agents:loop", "reward": {"called_tool": 0.5}}, "env_config.reward.called_tool = 0.5"),
        ({"agent": "own_agents:loop", "reward": {"tool_error": -0.1}}, "env_config.reward.tool_error = -0.1"),
        ({"agent": "own_agents:loop", "reward": {"all_tools_for": "partial"}}, "env_config.reward.all_tools_for = 'partial'"),
        (
            {"agent": "own_agents:loop", "protocol": ProtocolSettings(format="native", system_prompt="Be brief.")},
            "an agent writes its own messages, and calls its own tools: leave it out",
        ),
        ({"agent": "own_agents:loop", "protocol": ProtocolSettings()}, "set protocol.format to 'native'"),
    ],
)
def test_bad_options_are_refused(env: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"env_config\.") as refused:
        AgentEnv({"dataset": "unread.jsonl", "protocol": SETTINGS, **env})
    assert message in str(refused.value)
