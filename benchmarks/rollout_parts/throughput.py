"""(a), (e): our loop against ``vllm.LLM.generate`` on the same prompts and lengths, without tools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rapo_rllib.settings import RolloutSettings
from rapo_rllib.types import Question
from rollout_parts.bench import MAX_MODEL_LEN, Bench, median
from rollout_parts.plan import Plan
from rollout_parts.scripted import SlowToolEnv


class Contest:
    """A contest with equal prompts and lengths for both sides: ``questions`` times ``group_size`` trajectories of one step."""

    def __init__(self, bench: Bench, plan: Plan, questions: Sequence[Question], group_size: int) -> None:
        self.bench, self.plan, self.questions, self.group_size = bench, plan, questions, group_size
        settings = RolloutSettings(group_size=group_size, num_hybrid=0, max_response_tokens=MAX_MODEL_LEN // 2)
        self._loop = bench.loop(lambda: SlowToolEnv(plan), settings)
        self._names = [f"{question.id}/{index}" for question in questions for index in range(group_size)]
        prompts = [bench.chat.prompt_ids(question.text) for question in questions]
        self._prompts = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(group_size)]
        self.num_tokens = sum(plan.tokens(name, 0) for name in self._names)

    def ours(self) -> float:
        """Tokens/s of ``RolloutLoop``, entropies and logprobs recorded."""
        self.bench.engine.forget_prefixes()
        self.bench.engine.plan = self.plan
        started = time.monotonic()
        groups = self._loop.run(self.questions)
        seconds = time.monotonic() - started
        self.bench.engine.plan = None
        return self._rate(sum(len(t.token_ids) for group in groups for t in group.trajectories), seconds)

    def offline(self) -> float:
        """Tokens/s of ``LLM.generate`` with nothing recorded."""
        from vllm import SamplingParams

        self.bench.offline.llm_engine.reset_prefix_cache()
        lengths = [self.plan.tokens(name, 0) for name in self._names]
        params = [SamplingParams(max_tokens=n, temperature=1.0, ignore_eos=True) for n in lengths]
        started = time.monotonic()
        outputs = self.bench.offline.generate(self._prompts, params, use_tqdm=False)
        seconds = time.monotonic() - started
        return self._rate(sum(len(output.outputs[0].token_ids) for output in outputs), seconds)

    def _rate(self, generated: int, seconds: float) -> float:
        assert generated == self.num_tokens, f"{generated} tokens generated, {self.num_tokens} planned"
        return generated / seconds

    def close(self) -> None:
        """Stop the loop's threads."""
        self._loop.close()


def interleaved(contest: Contest, repetitions: int) -> list[tuple[float, float]]:
    """(ours, offline) tokens/s of every repetition; who begins alternates."""
    pairs = []
    for repetition in range(repetitions):
        if repetition % 2:
            offline = contest.offline()
            pairs.append((contest.ours(), offline))
        else:
            pairs.append((contest.ours(), contest.offline()))
    return pairs


def ratio_vs_offline(
    bench: Bench, questions: int, group_size: int, tokens: tuple[int, int], repetitions: int
) -> dict[str, Any]:
    """Part (a)."""
    plan = Plan(bench.options.seed, tokens)
    warmup = Contest(bench, Plan(bench.options.seed, (4, 4)), bench.questions(questions), group_size)
    interleaved(warmup, 1)
    warmup.close()
    contest = Contest(bench, plan, bench.questions(questions), group_size)
    pairs = interleaved(contest, repetitions)
    contest.close()
    return {
        "trajectories": questions * group_size,
        "generated_tokens": contest.num_tokens,
        "ours_tokens_per_s": [ours for ours, _ in pairs],
        "offline_tokens_per_s": [offline for _, offline in pairs],
        "ratios": [ours / offline for ours, offline in pairs],
        "ratio": median([ours / offline for ours, offline in pairs]),
    }


def by_concurrency(bench: Bench, sizes: Sequence[int], tokens: int, repetitions: int) -> list[dict[str, Any]]:
    """Part (e): tokens/s with ``n`` trajectories of equal length under way at the same time."""
    points = []
    for size in sizes:
        contest = Contest(bench, Plan(bench.options.seed, (tokens, tokens)), bench.questions(size), 1)
        pairs = interleaved(contest, repetitions)
        contest.close()
        ours, offline = median([o for o, _ in pairs]), median([v for _, v in pairs])
        points.append({"trajectories": size, "ours_tokens_per_s": ours, "offline_tokens_per_s": offline})
    return points
