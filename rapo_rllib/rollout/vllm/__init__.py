"""The vLLM engine: the only folder of rollouts that imports vLLM."""
