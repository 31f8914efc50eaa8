"""Rollouts as RLlib has them: the env runner, questions to several of them, and what a rollout reports."""
