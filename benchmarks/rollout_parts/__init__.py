"""The parts of ``benchmarks/rollout.py``: one file per question, and what they share."""
