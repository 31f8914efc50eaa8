"""One run on the chains."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learning_parts.methods import ARMS
from learning_parts.plan import TOKENS


@dataclass(frozen=True)
class ChainRun:
    """What one run is."""

    arm: str
    seed: int
    calls: int  # calculations of a chain
    lr: float
    policy: str  # folder of the base policy
    folder: str  # of everything it writes
    tokens: int = TOKENS  # generated in training before it ends
    evaluation_interval: int = 4  # iterations
    threads: int = 1
    attempted: int = 100  # held-out questions of pass@8; 0: it is not measured

    @property
    def name(self) -> str:
        """Unique in its folder."""
        return f"{self.calls}-{self.arm}-{self.lr:g}-{self.seed}"

    @property
    def file(self) -> Path:
        """What it is, then rows of figures."""
        return Path(self.folder) / f"{self.name}.jsonl"

    def config(self) -> Any:
        """The job."""
        from learning_parts.chains import Chains
        from learning_parts.imitation import protocol
        from rapo_rllib import RAPOConfig

        arm = dict(ARMS[self.arm])
        env = {"seed": self.seed, "lengths": [self.calls], "max_tool_calls": 5, **arm.pop("env_config", {})}
        uri = str(Path(self.folder) / f"buffer-{self.name}.db")  # its own: a Lite path is open in one process at a time
        buffer = {"uri": uri, **arm.pop("step_trace_buffer", {})}
        engines = arm.pop("num_env_runners", 0)  # 0: one in this process
        return (
            RAPOConfig()
            .environment(Chains, env_config=env)
            .env_runners(num_env_runners=engines)
            .learners(num_learners=0)
            .evaluation(evaluation_interval=self.evaluation_interval, evaluation_duration=200)
            .debugging(seed=self.seed)
            .training(
                model={"name_or_path": self.policy, "autocast_dtype": None},
                engine={"dtype": "float32", "enforce_eager": True, "max_num_seqs": 128, "kv_cache_gib": 0.5},
                protocol=asdict(protocol()),
                questions_per_step=16,
                group_size=8,
                num_hybrid=4,
                num_minibatches=2,
                max_prompt_tokens=64,
                max_response_tokens=320,
                max_step_tokens=48,
                lr=self.lr,
                learner_num_threads=self.threads,
                transcripts=True,
                step_trace_buffer=buffer,
            )
            .training(**arm)
        )
