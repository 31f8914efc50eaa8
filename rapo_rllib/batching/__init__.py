"""Layer 2: trajectory groups become packed learner tensors."""
