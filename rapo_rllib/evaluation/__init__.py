"""Evaluation on held-out questions during training, and evaluation of models on benchmarks."""
