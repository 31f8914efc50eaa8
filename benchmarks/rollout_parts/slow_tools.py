"""(b): our schedule against lockstep, with tools of random latency."""

from __future__ import annotations

from functools import partial
from typing import Any

from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import TokenKind, TrajectoryGroup
from rollout_parts.bench import MAX_MODEL_LEN, Bench, median
from rollout_parts.lockstep import LockstepResult, run_lockstep
from rollout_parts.plan import Plan
from rollout_parts.scripted import SlowToolEnv

STEP_LIMIT = 128


def ratio_vs_lockstep(bench: Bench, trajectories: int, plan: Plan, repetitions: int) -> dict[str, Any]:
    """Part (b): tokens/s of both schedules on the same questions, lengths and latencies; every repetition draws new ones."""
    assert bench.engine  # started and warmed up
    questions = bench.questions(trajectories)
    settings = RolloutSettings(
        group_size=1,
        num_hybrid=0,
        max_response_tokens=MAX_MODEL_LEN // 2,
        max_step_tokens=STEP_LIMIT,
        tool_workers=trajectories,
    )
    runs = []
    for repetition in range(repetitions):
        drawn = Plan(plan.seed + repetition, plan.step_tokens, plan.calls, plan.latency_median_s, plan.latency_p99_s)
        bench.engine.plan = drawn
        bench.engine.forget_prefixes()
        loop = bench.loop(partial(SlowToolEnv, drawn), settings)
        groups = loop.run(questions)
        loop.close()
        bench.engine.forget_prefixes()
        lockstep = run_lockstep(bench.engine, bench.chat, partial(SlowToolEnv, drawn), questions, STEP_LIMIT)
        check_equal(groups, lockstep)
        runs.append(_figures(drawn, groups, loop.stats, lockstep))
    bench.engine.plan = None
    return {"runs": runs, "ratio": median([run["ratio"] for run in runs])}


def check_equal(groups: list[TrajectoryGroup], lockstep: LockstepResult) -> None:
    """Both sides must have generated the same number of tokens in every trajectory, observations included."""
    for group in groups:
        (trajectory,) = group.trajectories
        name = group.question.id
        ours = (trajectory.num_tokens(TokenKind.POLICY), len(trajectory.token_ids))
        theirs = (lockstep.generated_tokens[name], lockstep.response_tokens[name])
        # what a token writes beyond a closing tag is left out of the observation, so observations may differ by a token
        if ours[0] != theirs[0] or abs(ours[1] - theirs[1]) > 4:
            raise AssertionError(f"{name} ({trajectory.end} {trajectory.error}): ours {ours}, lockstep {theirs} tokens")


def _figures(plan: Plan, groups: list[TrajectoryGroup], stats: Any, lockstep: LockstepResult) -> dict[str, Any]:
    tokens = sum(lockstep.generated_tokens.values())
    names = [f"{group.question.id}/0" for group in groups]
    chains = [sum(plan.latency_s(name, call) for call in range(plan.num_calls(name))) for name in names]
    return {
        "generated_tokens": tokens,
        "tool_calls": sum(plan.num_calls(name) for name in names),
        "ours_s": stats.seconds,
        "lockstep_s": lockstep.seconds,
        "ours_tokens_per_s": tokens / stats.seconds,
        "lockstep_tokens_per_s": tokens / lockstep.seconds,
        "ours_idle_s": stats.idle_s,
        "lockstep_tools_s": lockstep.tools_s,
        "lockstep_rounds": lockstep.rounds,
        "longest_chain_of_tools_s": max(chains),
        "ratio": lockstep.seconds / stats.seconds,
    }
