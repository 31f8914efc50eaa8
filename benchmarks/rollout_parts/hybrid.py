"""(d): hybrid against on-policy rollouts of the real word problems, on the same questions and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rapo_rllib.buffer.store import StepTraceBuffer
from rapo_rllib.envs.word_problems.env import WordProblems
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import TokenKind, TrajectoryGroup
from rollout_parts.bench import Bench


def job_settings(bench: Bench, num_hybrid: int) -> RolloutSettings:
    """Return group size and budgets of the main job."""
    names = ("group_size", "max_prompt_tokens", "max_response_tokens", "max_step_tokens")
    return RolloutSettings(**{name: bench.config[name] for name in names}, num_hybrid=num_hybrid)


def word_problem_loop(bench: Bench, num_hybrid: int, retriever: Retriever | None, cls: type = RolloutLoop) -> Any:
    """The main job's rollout, python tool included."""
    return bench.loop(lambda: WordProblems(bench.env_config), job_settings(bench, num_hybrid), retriever, cls)


def make_retriever(buffer: StepTraceBuffer) -> Retriever:
    """Make the retriever as training does."""
    return Retriever(buffer, selection="nearest", top_k=1)


def hybrid_vs_on_policy(
    bench: Bench, buffer: StepTraceBuffer, questions: int, retrieval_prob: float, repetitions: int
) -> dict[str, Any]:
    """Part (d): both sides over ``repetitions`` disjoint sets of questions, and hybrid / on-policy of everything."""
    half = bench.config["group_size"] // 2
    retriever = make_retriever(buffer)
    retriever([session_query(bench)])  # loads the embedder
    sides: dict[str, list[dict[str, float]]] = {"on_policy": [], "hybrid": []}
    for repetition in range(repetitions):
        chosen = bench.questions(questions, offset=repetition * questions)
        order = ["on_policy", "hybrid"] if repetition % 2 == 0 else ["hybrid", "on_policy"]
        for side in order:
            bench.engine.forget_prefixes()
            loop = word_problem_loop(bench, 0 if side == "on_policy" else half, retriever)
            groups = loop.run(chosen, retrieval_prob=retrieval_prob)
            loop.close()
            sides[side].append(_figures(groups, loop.stats))
    summed = {side: _summed(runs) for side, runs in sides.items()}
    ratios = {name: summed["hybrid"][name] / value for name, value in summed["on_policy"].items() if value}
    return {**summed, "ratios": ratios, "num_hybrid": half, "group_size": half * 2, "retrieval_prob": retrieval_prob}


def session_query(bench: Bench) -> Any:
    """A history to warm up with."""
    from rapo_rllib.types import HistoryQuery

    return HistoryQuery(bench.questions(1)[0].text, "")


def _figures(groups: Sequence[TrajectoryGroup], stats: Any) -> dict[str, float]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    kinds = [kind for trajectory in trajectories for kind in trajectory.kinds]
    entropies = [
        entropy
        for trajectory in trajectories
        for entropy, kind in zip(trajectory.entropies, trajectory.kinds, strict=True)
        if kind == TokenKind.POLICY
    ]
    return {
        "seconds": stats.seconds,
        "trajectories": len(trajectories),
        "generated_tokens": kinds.count(TokenKind.POLICY),
        "observation_tokens": kinds.count(TokenKind.OBSERVATION),
        "retrieved_tokens": kinds.count(TokenKind.RETRIEVED),
        "tool_calls": sum(stats.tool_calls.values()),
        "retrievals": sum(len(trajectory.retrievals) for trajectory in trajectories),
        "correct": sum(trajectory.correct for trajectory in trajectories),
        "entropy_sum": sum(entropies),
    }


def _summed(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    total = {name: sum(run[name] for run in runs) for name in runs[0]}
    total["accuracy"] = total.pop("correct") / total["trajectories"]
    total["entropy"] = total.pop("entropy_sum") / max(total["generated_tokens"], 1)
    total["tokens_per_s"] = total["generated_tokens"] / total["seconds"]
    return total
