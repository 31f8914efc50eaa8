"""The questions of an evaluation, and how they are asked: the same for every model.

benchmarks, limits -> asked_benchmark -> EvaluationPlan -> models.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rapo_rllib.envs.benchmarks import Benchmark, benchmark_questions
from rapo_rllib.types import Question


@dataclass(frozen=True)
class AskedBenchmark:
    """A benchmark with the questions that are asked."""

    benchmark: Benchmark
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class EvaluationPlan:
    """The questions and how they are asked; the same for every model, as are the settings that all of them answer with."""

    asked: tuple[AskedBenchmark, ...]
    tools: tuple[Any, ...] | None = None  # as in env_config.tools; None: the job's, or the benchmark's
    scorer: Any = "auto"  # as in env_config.scorer; auto: the benchmark's
    retrieval_prob: float = 0.0  # chance of a retrieval after a completed step, of every attempt


def asked_benchmark(benchmark: Benchmark, path: str | None, max_questions: int | None) -> AskedBenchmark:
    """The first questions of a benchmark. Raises ``ValueError`` if its data is not there, or has no questions."""
    questions = benchmark_questions(benchmark, path)[:max_questions]
    if not questions:
        raise ValueError(f"benchmark {benchmark.name!r}: {path or benchmark.hub_id} holds no questions")
    return AskedBenchmark(benchmark, questions)
