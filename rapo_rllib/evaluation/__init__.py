"""Held-out questions while training, and models on benchmarks."""
