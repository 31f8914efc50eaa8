"""Asynchronous rollouts: questions go to engines as they free up, groups come back as they are complete."""
