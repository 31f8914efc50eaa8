"""Parts of ``benchmarks/learning.py``: the task, the small model, one run, the comparison."""
