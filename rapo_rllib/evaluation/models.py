"""Evaluation of models on named benchmarks.

    benchmarks -> questions -> agent (checkpoint, model, endpoint; retrieval only if asked) -> journal -> metrics

The agents are the same that write Step-Trace Buffers (``agents/``), with the same prompt, tags, tools and budgets. All models
of a comparison take their settings from one config (``cli/evaluate/choices.py``), so that nothing but the model differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from rapo_rllib.agents.asking import Progress, ask
from rapo_rllib.agents.journal import Journal, sum_of_questions
from rapo_rllib.agents.setup import AgentChoice, answer_settings, make_agent_factory
from rapo_rllib.buffer.leak_guard import LeakGuard, refuse_leaks
from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.config.question_source import is_tool_env
from rapo_rllib.env_runner.parts import make_retriever
from rapo_rllib.envs.benchmarks import Benchmark, benchmark_questions
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import Settings
from rapo_rllib.types import Question

ENV = "rapo/questions"
# keys of env_config that an evaluation takes over from a training run; the scorer is the benchmark's unless one is asked for
ENV_KEYS = ("max_tool_calls", "protocol", "read_answer", "require_boxed", "reward", "tools")
_NOT_OF_ANSWERS = ("timeout_s", "traces", "max_traces", "growth", "max_grown")
Config = Any  # a RAPOConfig, which belongs to a higher layer
_OF_RETRIEVAL = ("retrieval_level", "retrieval_budget", "retrieval_noise")


@dataclass(frozen=True)
class AskedBenchmark:
    """A benchmark with the questions that are asked."""

    benchmark: Benchmark
    questions: tuple[Question, ...]
    sum: str = ""  # checksum of all questions of the benchmark

    @classmethod
    def of(cls, benchmark: Benchmark, path: str | None, max_questions: int | None) -> Self:
        """Read the first questions of a benchmark. Raises ``ValueError`` if its data is missing, or has no questions."""
        questions = benchmark_questions(benchmark, path)
        if not questions:
            raise ValueError(f"benchmark {benchmark.name!r}: {path or benchmark.hub_id} holds no questions")
        return cls(benchmark, questions[:max_questions], sum_of_questions(questions))


def for_benchmarks(base: Config) -> Config:
    """Copy ``base``, with the benchmarks' environment and only those keys of ``env_config`` that apply to it."""
    config = base.copy(copy_frozen=False)
    own: Mapping[str, Any] = base.env_config if base.env is None or is_tool_env(base.env) else {}
    # assigned, since ``environment()`` would keep the other keys of the job's env_config
    config.env, config.env_config = ENV, {key: own[key] for key in ENV_KEYS if key in own}
    return config


def _evaluation_config(base: Config, tools: Any) -> Config:
    """Copy a config of :func:`for_benchmarks`, with tools, and without the retrieval and the branching of training."""
    config = base.copy(copy_frozen=False)
    # the agent is given its questions: this data set is not loaded
    config.env_config = {"scorer": "auto", **config.env_config, "dataset": "gsm8k", "tools": tools}
    config.num_hybrid, config.branching = 0, None
    return config


def _tools(base: Config, benchmark: Benchmark) -> Any:
    """Choose the tools for a benchmark: those that were asked for or the job's, else the benchmark's own."""
    return base.env_config.get("tools", list(benchmark.tools))


def model_settings(base: Config, choice: AgentChoice, asked: Iterable[AskedBenchmark]) -> dict[str, Any]:
    """Collect all settings that a model's answers depend on, as values of JSON."""
    config = _evaluation_config(base, [])
    found = answer_settings(config.settings, config.question_source, choice)
    for key in ("dataset", "tools"):
        del found["env_config"][key]
    found["tools"] = {each.benchmark.name: _tools(base, each.benchmark) for each in asked}
    if choice.retrieval_prob:
        buffer = asdict(base.settings.buffer)
        found["step_trace_buffer"] = {key: value for key, value in buffer.items() if key not in _NOT_OF_ANSWERS}
        found |= {"retrieval_prob": choice.retrieval_prob, **{key: getattr(base, key) for key in _OF_RETRIEVAL}}
    as_json: dict[str, Any] = json.loads(json.dumps(found, sort_keys=True, default=str))
    return as_json


def evaluate_model(
    label: str,
    choice: AgentChoice,
    base: Config,
    asked: Sequence[AskedBenchmark],
    journal: Journal,
    tell: Callable[[Progress], None],
) -> None:
    """Let one model answer the questions that it has not answered yet; benchmarks with the same tools share an engine.

    Args:
        label: what the model is called in the journal.
        choice: the model, and how it samples.
        base: a ``RAPOConfig`` from :func:`for_benchmarks`, whose protocol, budgets, engine and buffer are used.
        asked: the benchmarks with their questions.
        journal: keeps the answers; its context has been entered.
        tell: called with the progress.

    Raises:
        AgentError: an endpoint refuses every request, or too many attempts fail.
        EngineError: the engine broke.
        RetrievalError: Milvus does not answer, or too large a share of the retrievals failed.
        ValueError: there is no such model or buffer, or a tool cannot be used.
    """
    groups: dict[str, list[AskedBenchmark]] = {}
    for each in asked:
        groups.setdefault(json.dumps(_tools(base, each.benchmark), default=str), []).append(each)
    questions = [question for each in asked for question in each.questions]
    known = [(label, each.benchmark.name, question.id) in journal for each in asked for question in each.questions]
    progress = Progress(choice.samples * len(known), choice.samples * sum(known))
    for group in groups.values():
        config = _evaluation_config(base, _tools(base, group[0].benchmark))
        config.question_source.env_maker()().close()  # a faulty tool is reported before a model is loaded
        if all((label, each.benchmark.name, question.id) in journal for each in group for question in each.questions):
            continue
        with (
            opened_retriever(config.settings, choice.retrieval_prob, questions) as retriever,
            closing(make_agent_factory(config.settings, config.question_source, choice, retriever)()) as agent,
        ):
            for each in group:
                ask(agent, (label, each.benchmark.name), each.questions, journal, progress, tell)


@contextmanager
def opened_retriever(settings: Settings, prob: float, questions: Iterable[Question]) -> Iterator[Retriever | None]:
    """Open the retriever of an evaluation, which reads the job's buffer and never writes to it; None if ``prob`` is 0.

    Raises:
        ValueError: there is no buffer, or the buffer holds step traces of the questions.
        RetrievalError: Milvus does not answer.
    """
    if not prob:
        yield None
        return
    with closing(StepTraceBuffer(settings.buffer)) as buffer:
        if not buffer.exists():
            raise ValueError(
                f"--retrieval-prob: there is no collection {buffer.collection!r} at {buffer.uri}; name a buffer by "
                "--set step_trace_buffer.uri=... (and step_trace_buffer.collection=...)"
            )
        refuse_leaks(buffer, LeakGuard(question.text for question in questions))
        buffer.prepare()
        yield make_retriever(settings, buffer)
