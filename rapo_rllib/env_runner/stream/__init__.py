"""Rollouts that nobody waits for: questions to engines as they free up, groups back as they are complete."""
