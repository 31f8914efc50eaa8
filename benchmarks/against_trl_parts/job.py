"""The job that both sides run: questions, prompt, judge, and the numbers that decide its course."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.envs.word_problems.env import WordProblems
from rapo_rllib.protocol.chat import said_before
from rapo_rllib.protocol.make import make_protocol
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.settings.knobs import build
from rapo_rllib.types import Question

FILE = "job.json"
PROTOCOL: dict[str, Any] = {
    "format": "native",  # the chat template's own turns, which end with its token: as TRL writes and ends them
    "system_prompt": "Solve the problem. Write the calculation, then the answer as \\boxed{number}.",
}
TRAIN_QUESTIONS, PROMPT_TOKENS = 2000, 96  # the second: at most
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}  # of vLLM outside our engine, which has as much
ADVANTAGE_EPSILON, GRAD_CLIP, WEIGHT_DECAY = 1e-4, 1.0, 0.0  # TRL's defaults, and so for both sides


@dataclass(frozen=True)
class Job:
    """One training; ``against_trl.py --help`` says what each means."""

    seed: int
    iterations: int
    every: int  # iterations between two policies that are evaluated
    model: str  # a Hugging Face folder
    solutions: int  # that it has imitated
    dtype: str  # of matrix products and of our engine; weights and AdamW are float32
    lr: float
    questions: int
    group_size: int
    max_tokens: int
    held_out: int
    trl_batch: int

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The job of a run's folder."""
        return cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))

    def write(self, folder: Path) -> None:
        """Leave it for the processes that work in ``folder``."""
        (folder / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def settings(self) -> str:
        """A hash of all that decides its course, the seed left out."""
        decides = {**asdict(replace(self, seed=0)), "model": Path(self.model).name, **PROTOCOL, **self.env_config}
        decides["fixed"] = [PROMPT_TOKENS, ADVANTAGE_EPSILON, GRAD_CLIP, WEIGHT_DECAY]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def env_config(self) -> dict[str, Any]:
        """Settings of ``rapo/word_problems``: one calculation, answered at once, without tools."""
        counts = {"num_train": TRAIN_QUESTIONS, "num_test": self.held_out}
        return {"steps": [1, 1], "max_number": 10, "tools": [], "read_answer": "any", "require_boxed": False, **counts}

    def questions_in_order(self) -> list[Question]:
        """The training questions, in the order in which our algorithm asks them."""
        questions = WordProblems.questions(self.env_config, "train")
        return QuestionCursor(questions, seed=self.seed).take(self.iterations * self.questions)

    def policy_due(self, iteration: int) -> bool:
        """Whether the policy after this iteration is evaluated."""
        return iteration % self.every == 0 or iteration == self.iterations


class Judge:
    """The environment and the prompt of the job, for whoever does not run them inside our rollout."""

    def __init__(self, job: Job, tokenizer: Any) -> None:
        self._settings = build(ProtocolSettings, PROTOCOL)
        self._env = WordProblems({**job.env_config, "protocol": PROTOCOL})
        self._chat = make_protocol(tokenizer, self._settings, self._env)

    def prompt_ids(self, question: Question) -> list[int]:
        """Tokens of the prompt, as our rollout makes it."""
        return self._chat.prompt_ids(question.text, question)

    def messages(self, question: Question) -> list[dict[str, Any]]:
        """Write the prompt as turns."""
        return said_before(question.text, question, self._settings.system_prompt, self._settings)

    def reward(self, question: Question, token_ids: Sequence[int]) -> float:
        """1 for a right answer, else 0: the reward of training, and of a held-out response its share of the accuracy."""
        self._env.reset(options={"question": question})
        self._env.turn_ended = bool(token_ids) and token_ids[-1] in self._chat.end_ids
        reward = self._env.step(self._chat.read(token_ids, "", "", "eos" if self._env.turn_ended else "length"))[1]
        return float(reward)


class Rows:
    """The rows of a side's raw result: one an iteration, and the seconds of training until each policy that is evaluated."""

    def __init__(self, job: Job, export: Callable[[Path], Any], folder: Path) -> None:
        self._job, self._export, self._folder = job, export, folder
        self.rows: list[dict[str, float]] = []
        self.policies: dict[int, float] = {}  # seconds of training, by iteration; exports take none of them

    def add(self, seconds: float, rollout_s: float, update_s: float, tokens: int, trained: int, reward: float) -> None:
        """Note an iteration, and write the policy where it is due; ``trained``: tokens of responses that are in the loss."""
        row = {"seconds": seconds, "rollout_s": rollout_s, "update_s": update_s}
        row |= {"tokens": tokens, "trained": trained, "reward": reward}
        self.rows.append(row)
        if self._job.policy_due(len(self.rows)):
            self.policies[len(self.rows)] = sum(row["seconds"] for row in self.rows)
            self._export(self._folder / f"policy-{len(self.rows)}")

    def write(self, file: Path) -> None:
        """Write the side's part of the raw result."""
        raw = {"iterations": self.rows, "policies": self.policies, "training_s": sum(row["seconds"] for row in self.rows)}
        file.write_text(json.dumps(raw), encoding="utf-8")
