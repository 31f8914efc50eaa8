"""The parts of ``benchmarks/learner.py``: one file per question, and what they share."""
