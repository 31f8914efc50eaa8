"""Agents with a loop of their own: they ask the policy that is trained over OpenAI's protocol."""
