"""One run of SmolLM2 on the word problems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning_parts.methods import ARMS
from learning_parts.plan import WORD_TOKENS


@dataclass(frozen=True)
class WordRun:
    """What one run is."""

    arm: str
    seed: int
    lr: float
    policy: str  # folder of the base policy
    folder: str  # of everything it writes
    tokens: int = WORD_TOKENS  # generated in training before it ends
    evaluation_interval: int = 2  # iterations
    threads: int = 1
    attempted: int = 50  # held-out questions of pass@8
    calls: str = "words"  # where a run on the chains says how many calculations they have

    @property
    def name(self) -> str:
        """Unique in its folder."""
        return f"words-{self.arm}-{self.lr:g}-{self.seed}"

    @property
    def file(self) -> Path:
        """What it is, then rows of figures."""
        return Path(self.folder) / f"{self.name}.jsonl"

    def config(self) -> Any:
        """The job."""
        from learning_parts.word_policy import base_config
        from learning_parts.word_traces import TASK

        arm = dict(ARMS[self.arm])
        buffer = {"uri": str(Path(self.folder) / f"buffer-{self.name}.db"), **arm.pop("step_trace_buffer", {})}
        return (
            base_config(self.policy)
            .environment("rapo/word_problems", env_config={**TASK, "steps": [3, 3], "seed": self.seed})
            .evaluation(evaluation_interval=self.evaluation_interval, evaluation_duration=100)
            .debugging(seed=self.seed)
            .training(
                questions_per_step=12,
                group_size=8,
                num_hybrid=4,
                num_minibatches=2,
                lr=self.lr,
                learner_num_threads=self.threads,
                transcripts=True,
                step_trace_buffer=buffer,
            )
            .training(**arm)
        )
