"""Checkpoints, written whole or not at all, with the policy as a Hugging Face folder."""
