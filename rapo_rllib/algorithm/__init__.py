"""The training step (sample groups, update the policy, confirm the new weights) and the config of a training."""
