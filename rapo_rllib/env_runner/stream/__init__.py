"""Asynchronous rollouts: an engine gets questions as soon as it has room; a group comes back as soon as it is complete."""
