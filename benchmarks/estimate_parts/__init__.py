"""Parts of ``benchmarks/estimate.py``: jobs that are measured, and how."""
