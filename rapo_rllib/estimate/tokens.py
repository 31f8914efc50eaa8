"""Tokens of one iteration: what a job allows at most, and what rollouts usually take of it."""

from __future__ import annotations

from dataclasses import dataclass

from rapo_rllib.settings import Settings

USUAL_SHARES = (0.15, 0.6)  # of the response budget: measured in jobs of ours (benchmarks/RESULTS.md), not in yours


@dataclass(frozen=True)
class Tokens:
    """Of one iteration."""

    questions: int
    trajectories: int  # at most
    prompt: int  # tokens at most, of all questions, each prompt once
    response: int  # tokens at most, of all trajectories
    longest: int  # tokens at most of one prompt and response

    @property
    def learned(self) -> int:
        """Tokens at most that a learner computes: prompts are shared by the trajectories of a group."""
        return self.prompt + self.response

    @property
    def usual_responses(self) -> tuple[int, int]:
        """A usual range of response tokens."""
        low, high = USUAL_SHARES
        return int(self.response * low), int(self.response * high)


def tokens_per_iteration(settings: Settings) -> Tokens:
    """Bounds, ``questions * G * max_response_tokens``, and prompts once a question.

    With ``dynamic_sampling`` up to ``max_sampling_rounds`` rounds are sampled, of which one trains; off-policy trajectories
    join each group.
    """
    rollout = settings.rollout
    group = rollout.group_size + settings.off_policy.off_policy_trajectories
    trajectories = settings.update.questions_per_step * group
    return Tokens(
        settings.update.questions_per_step,
        trajectories,
        settings.update.questions_per_step * rollout.max_prompt_tokens,
        trajectories * rollout.max_response_tokens,
        rollout.max_prompt_tokens + rollout.max_response_tokens,
    )


def micro_batches(tokens: Tokens, max_tokens: int, learners: int, minibatches: int) -> int:
    """Passes at most of one learner in one optimiser step: its share of the tokens, in rows of ``max_tokens``."""
    share = -(-tokens.learned // (max(1, learners) * minibatches))
    return max(1, -(-share // max(max_tokens, tokens.longest)))
