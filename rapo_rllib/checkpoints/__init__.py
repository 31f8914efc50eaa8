"""Checkpoints: whole or not at all, and the policy as a Hugging Face folder."""
