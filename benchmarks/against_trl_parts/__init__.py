"""Parts of ``benchmarks/against_trl.py``."""
