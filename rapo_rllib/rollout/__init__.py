"""Rollout of questions into trajectories: ``loop`` drives an ``engine`` and text environments, and inserts step traces."""
