"""The batch that all sides train on: real text, cut to exact lengths, as tokens in a file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rapo_rllib.envs.word_problems.env import WordProblems
from rapo_rllib.models.loading import load_tokenizer
from rapo_rllib.settings import ModelSettings

TEXTS = 2000  # at most so many are read


@dataclass(frozen=True)
class Batch:
    """One group of ``G`` trajectories of ``P`` prompt and ``R`` response tokens."""

    prompt: np.ndarray  # [P]
    responses: np.ndarray  # [G, R]
    rewards: np.ndarray  # [G], 0 or 1

    @classmethod
    def load(cls, file: Path) -> Batch:
        """Read what ``save_batch`` wrote."""
        with np.load(file) as saved:
            return cls(saved["prompt"], saved["responses"], saved["rewards"])


def save_batch(file: Path, model: str, prompt: int, response: int, group_size: int, data: Path | None) -> Path:
    """Write a batch of these lengths; returns ``file``.

    Raises:
        ValueError: the texts are too short for it.
    """
    tokenizer = load_tokenizer(ModelSettings(name_or_path=model))
    texts = list(_pairs(data))
    prompts = tokenizer("\n".join(question for question, _ in texts))["input_ids"]
    answers = tokenizer("\n".join(answer for _, answer in texts))["input_ids"]
    if len(answers) < group_size * response or len(prompts) < prompt:
        raise ValueError(f"{data}: {len(answers)} tokens of answers, of which {group_size} times {response} are needed")
    stride = len(answers) // group_size
    responses = np.array([answers[start * stride : start * stride + response] for start in range(group_size)])
    rewards = np.random.default_rng(0).permutation(np.arange(group_size) % 2).astype(np.float32)
    np.savez(file, prompt=np.array(prompts[:prompt]), responses=responses, rewards=rewards)
    return file


def _pairs(data: Path | None) -> Iterator[tuple[str, str]]:
    """Questions with answers: of a file, or of the word problems' solver."""
    if data is None:
        for expert in WordProblems.expert_trajectories({"num_train": TEXTS}):
            yield expert.question.text, " ".join(expert.steps)
        return
    with gzip.open(data, "rt") if data.suffix == ".gz" else data.open(encoding="utf-8") as lines:
        for _, line in zip(range(TEXTS), lines, strict=False):
            row = json.loads(line)
            yield row["question"], row["answer"]
