"""Models on named benchmarks.

    benchmarks -> questions -> agent (checkpoint, model, endpoint; retrieval only if asked) -> attempts -> rows -> metrics

Rows are what is written (``journal.py``), and what the metrics are of: an evaluation that goes on after a kill has
the numbers of one that nobody killed.

Checkpoint and Hugging Face model answer in an engine of our own through the rollout of training, endpoints over HTTP: the
agents that also write Step-Trace Buffers (``agents/``), with the same prompt, tags, tools and budgets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from rapo_rllib.agents.attempts import AnsweredQuestion, Attempt
from rapo_rllib.agents.setup import AgentChoice, make_agent_factory, offered_tools
from rapo_rllib.env_runner.retrieval import make_retriever
from rapo_rllib.envs.benchmarks import Benchmark
from rapo_rllib.errors import AgentError
from rapo_rllib.evaluation.metrics import Outcome
from rapo_rllib.evaluation.plan import AskedBenchmark, EvaluationPlan
from rapo_rllib.evaluation.retrieval import opened_buffer
from rapo_rllib.evaluation.settings import JobConfig, benchmark_tools, evaluation_config
from rapo_rllib.protocol.answers import Answers, read_answer
from rapo_rllib.protocol.steps import parse_step
from rapo_rllib.rewards.qa import qa_em_score, qa_score
from rapo_rllib.rewards.score import asks_words
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import ProtocolSettings, Settings
from rapo_rllib.types import Question

Rows = list[dict[str, Any]]  # of one question, by attempt


@dataclass
class ModelRun:
    """One model's attempts so far."""

    label: str  # what it is called in rows and results
    choice: AgentChoice
    settings: Mapping[str, Any]  # resolved_settings
    rows: dict[tuple[str, str], Rows] = field(default_factory=dict)  # by benchmark and question id

    def outcomes(self, asked: AskedBenchmark) -> list[list[Outcome]]:
        """``[Q][N]``, in the order of the questions."""
        name = asked.benchmark.name
        return [[outcome_of(row) for row in self.rows[name, question.id]] for question in asked.questions]


def labels(choices: Sequence[AgentChoice]) -> list[str]:
    """A name for each model: its short one, with its place where an earlier one is called the same."""
    names = [choice.short_name for choice in choices]
    return [name if name not in names[:index] else f"{name} ({index + 1})" for index, name in enumerate(names)]


def evaluate_model(
    base: JobConfig, run: ModelRun, plan: EvaluationPlan, on_attempt: Callable[[], None], on_rows: Callable[[Rows], None]
) -> None:
    """Let one model answer the questions that it has not answered yet; benchmarks with the same tools share an engine.

    Args:
        base: the ``RAPOConfig`` whose protocol, budgets, engine and buffer are used.
        run: the model, how it samples, and what it has answered; what it answers is added.
        plan: what it is asked.
        on_attempt: called whenever an attempt has ended.
        on_rows: called with the rows of every finished question.

    Raises:
        AgentError: an endpoint refuses every request, or not one attempt at a benchmark came about.
        EngineError: the engine broke.
        RetrievalError: Milvus does not answer, or too large a share of the retrievals failed.
        ValueError: there is no such model or buffer, or a tool cannot be used.
    """
    by_tools: dict[str, tuple[list[Any], list[AskedBenchmark]]] = {}
    for asked in plan.asked:
        tools = benchmark_tools(base, plan, asked.benchmark)
        by_tools.setdefault(json.dumps(tools, default=str), (tools, []))[1].append(asked)
    silent: dict[str, list[Attempt]] = {}
    for tools, group in by_tools.values():
        left = {
            q.id: (asked.benchmark, q)
            for asked in group
            for q in asked.questions
            if (asked.benchmark.name, q.id) not in run.rows
        }
        config = evaluation_config(base, tools, plan.scorer)
        source = config.question_source
        offered_tools(source)  # what is wrong with a tool is told before a model is loaded
        if not left:
            continue
        with (
            _retriever(config.settings, plan) as retriever,
            closing(make_agent_factory(config.settings, source, run.choice, retriever)()) as agent,
        ):
            for answered in agent.answers([question for _, question in left.values()], on_attempt):
                benchmark, _ = left[answered.question.id]
                rows = transcript_rows(
                    run.label, benchmark, answered, base.settings.protocol, base.env_config.get("read_answer", "tagged")
                )
                run.rows[benchmark.name, answered.question.id] = rows
                silent.setdefault(benchmark.name, []).extend(answered.attempts)
                on_rows(rows)
    for name, attempts in silent.items():
        _refuse_silence(name, attempts)


@contextmanager
def _retriever(settings: Settings, plan: EvaluationPlan) -> Iterator[Retriever | None]:
    """Answers the histories of an evaluation with retrieval, from the job's buffer."""
    if not plan.retrieval_prob:
        yield None
        return
    with closing(opened_buffer(settings.buffer, (question for asked in plan.asked for question in asked.questions))) as buffer:
        yield make_retriever(settings, buffer)


def decided_by(settings: Mapping[str, Any], plan: EvaluationPlan) -> dict[str, Any]:
    """List what the answers of an evaluation depend on; a folder that was begun with something else is refused.

    Args:
        settings: ``resolved_settings`` of every model, by label.
        plan: what is asked.
    """
    found: dict[str, Any] = {"scorer": plan.scorer, "retrieval_prob": plan.retrieval_prob}
    for asked in plan.asked:
        texts = "".join(f"{question.id}\0{question.text}\0{question.answer}\0" for question in asked.questions)
        found[f"questions of {asked.benchmark.name}"] = hashlib.sha256(texts.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return found | {f"model {label}": own for label, own in settings.items()}


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """Return what one attempt counts as."""
    measured = {one.name: row[one.name] for one in fields(Outcome) if one.name in row}
    return Outcome(**measured, failed=bool(row["error"]), answered=row["predicted"] is not None)


def predicted(attempt: Attempt, settings: ProtocolSettings, answers: Answers, in_words: bool) -> str | None:
    """The answer as it was scored; None if there was none."""
    if attempt.end not in ("answer", "eos") or not attempt.steps:
        return None
    step = attempt.steps[-1]
    return read_answer(parse_step(step, settings, ()).answer, step, settings, answers, in_words)


def transcript_rows(
    model: str, benchmark: Benchmark, answered: AnsweredQuestion, settings: ProtocolSettings, answers: Answers = "tagged"
) -> Rows:
    """One row per attempt, for people and other programs, with what it counts as; for answers in words also F1, exact match."""
    question = answered.question
    rows = []
    for sample, attempt in enumerate(answered.attempts):
        answer = predicted(attempt, settings, answers, asks_words(question))
        rows.append(
            {
                "model": model,
                "benchmark": benchmark.name,
                "question_id": question.id,
                "question": question.text,
                "gold": [question.answer, *question.aliases],
                "sample": sample,
                "text": "".join(attempt.steps),
                "predicted": answer,
                "end": attempt.end,
                "error": attempt.error,
                "agent_failed": attempt.agent_failed,
                "correct": attempt.correct,
                "format_ok": attempt.format_ok,
                "tool_calls": attempt.num_tool_calls,
                "retrieved": list(attempt.retrieved),
                "retrievals": len(attempt.retrieved),
                "failed_retrievals": attempt.failed_retrievals,
                "score_failure": attempt.score_failure,
                "tokens": attempt.num_tokens,
                "seconds": attempt.seconds,
                **(_in_words(answer, question) if asks_words(question) else {}),
            }
        )
    return rows


def _in_words(answer: str | None, question: Question) -> dict[str, Any]:
    if answer is None:
        return {"f1": 0.0, "exact_match": False}
    return {"f1": qa_score(answer, question).value, "exact_match": qa_em_score(answer, question).correct}


def _refuse_silence(name: str, attempts: Sequence[Attempt]) -> None:
    if attempts and all(attempt.agent_failed for attempt in attempts):
        raise AgentError(f"{name}: not one of {len(attempts)} attempts came about: {attempts[-1].error}")
