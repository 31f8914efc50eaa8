"""Scorers of episodes: pure functions of answer, question and episode, which environments call."""

from rapo_rllib.rewards.score import Episode, EpisodeStep, Score, Scorer
from rapo_rllib.rewards.scorers import check_columns, check_scorer, is_own, shared_scorer
from rapo_rllib.rewards.terms import RewardOptions, reward_terms, step_rewards, with_reward_preset

__all__ = [
    "Episode",
    "EpisodeStep",
    "RewardOptions",
    "Score",
    "Scorer",
    "check_columns",
    "check_scorer",
    "is_own",
    "reward_terms",
    "shared_scorer",
    "step_rewards",
    "with_reward_preset",
]
