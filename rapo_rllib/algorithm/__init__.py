"""The training step: sample groups, move the policy, confirm the new weights; and the config that describes it."""
