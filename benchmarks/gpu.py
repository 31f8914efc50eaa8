r"""Measures on a GPU what decides there: kernels, sampling, the learner's step, memory, and how weights travel.

    python benchmarks/gpu.py --parts flex sampler --json gpu.json
    python benchmarks/gpu.py --parts learner --shapes 1.5b --rows 8192
    python benchmarks/gpu.py --small                      # tiny shapes, also without a GPU: whether all of it runs

Each part takes less than ten minutes and needs torch and transformers only, no Ray and no vLLM; ``--json`` adds its
figures to what the file holds. Every figure is measured twice, and both are kept. What a machine lacks is skipped with a word.

flex      FlexAttention along a prefix tree against blocks of SDPA, hidden states and gradients, of three kinds of models
sampler   a step of sampling at Qwen 2.5's vocabulary: with one generator a batch, one a row, and by hash
          (``rollout/vllm/seeded.py``); entropies and logprobs as the recorder measures them; what reading a result costs while
          a next step is queued
learner   forward and backward pass of rows from real prefix trees, on Qwen 2.5's shapes: ways of attention, precisions,
          activation checkpointing; tokens/s, MFU, peak memory, seconds of the first pass, and the gradient's error
states    memory of a 7B shape between two updates, where the learner scores as an engine would with a rounded copy of all
          weights: with gradients, as it was, and with gradients freed, as it is
copies    15 GB from a GPU through packed arrays, pinned memory and CUDA IPC
job       with Ray and vLLM: two iterations of ``tuned_examples/rapo_math_gpu.yaml`` by each way of weights, and with sleep
sleeps    with Ray and vLLM: twenty of them with sleep, whole weights and LoRA; the mismatch of engine and learner stays flat
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_parts import copies, flex, job, learner, sampler, states
from gpu_parts.machine import Sizes, machine
from gpu_parts.report import print_table

PARTS: dict[str, Callable[[Sizes], Any]] = {
    "flex": flex.measured,
    "sampler": sampler.measured,
    "learner": learner.measured,
    "states": states.measured,
    "copies": copies.measured,
    "job": job.measured,
    "sleeps": job.sleeps,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--small", action="store_true", help="tiny shapes, on the CPU where there is no GPU")
    parser.add_argument("--shapes", nargs="*", help="of `learner`: 1.5b, 3b (default: both)")
    parser.add_argument("--rows", nargs="*", type=int, help="of `learner`: tokens (default: 8192 16384)")
    parser.add_argument("--json", type=Path, help="add the figures to this file")
    arguments = parser.parse_args()
    sizes = Sizes.small() if arguments.small else Sizes()
    sizes = sizes.with_choice(arguments.shapes, arguments.rows)
    found = {} if arguments.json is None or not arguments.json.exists() else json.loads(arguments.json.read_text())
    measure(arguments.parts, sizes, found)
    print_table(found)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def measure(parts: list[str], sizes: Sizes, found: dict[str, Any]) -> None:
    """Put the figures of ``parts`` into ``found``. Without a GPU only small sizes are measured."""
    found["machine"] = machine(sizes)
    for part in parts:
        if sizes.device == "cpu" and not sizes.is_small:
            found[part] = {"skipped": "no CUDA device; --small measures tiny shapes on the CPU"}
        else:
            found[part] = PARTS[part](sizes)


if __name__ == "__main__":
    main()
