"""Agents with a loop of their own: during training they ask the policy for turns, over OpenAI's protocol."""
