"""``rllib evaluate``: models on benchmarks, and checkpoints in their environments."""
