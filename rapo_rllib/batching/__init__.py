"""Trajectory groups become packed learner tensors."""
