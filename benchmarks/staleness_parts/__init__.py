"""The parts of ``benchmarks/staleness.py``: a task with slow tools, and what is measured on it."""
