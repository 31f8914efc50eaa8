"""``rllib evaluate``: language models on benchmarks."""
