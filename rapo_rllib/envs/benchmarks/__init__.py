"""Named benchmarks, for ``rllib evaluate`` and ``env_config.test_dataset``: ``table`` says what they are, ``loading`` reads.

name, or NAME=PATH -> table -> dataset_files -> dataset_rows -> Question
"""

from rapo_rllib.envs.benchmarks.loading import benchmark_questions, split_name
from rapo_rllib.envs.benchmarks.table import BENCHMARKS, Benchmark, own_benchmark

__all__ = ["BENCHMARKS", "Benchmark", "benchmark_questions", "own_benchmark", "split_name"]
