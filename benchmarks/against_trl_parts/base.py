"""The model that both sides begin with: it has imitated some worked solutions, so that most groups have a gradient."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from against_trl_parts.job import TRAIN_QUESTIONS, Job
from against_trl_parts.ours import config_of
from rapo_rllib.envs.word_problems.env import WordProblem, WordProblems

SOLUTIONS, SOLUTION_TOKENS = "solutions.jsonl", 48  # the second: at most


def solution(problem: WordProblem) -> str:
    r"""Write a solution: a sentence an operation, then the answer, for example ``9 / 3 = 3. \boxed{3}``."""
    sentences = [f"{operation.code.replace('//', '/')} = {operation.value}. " for operation in problem.operations]
    return "".join(sentences) + f"\\boxed{{{problem.answer}}}"


def write_solutions(job: Job, file: Path) -> None:
    """Write solutions of the training questions behind those that are asked."""
    questions = WordProblems.questions(job.env_config | {"num_train": TRAIN_QUESTIONS + job.solutions}, "train")
    with file.open("w", encoding="utf-8") as lines:
        for index in range(TRAIN_QUESTIONS, len(questions)):
            problem = questions.problem(index)
            row = {"id": str(index), "question": problem.text, "steps": [solution(problem)]}
            lines.write(json.dumps(row) + "\n")


def make(job: Job, folder: Path, policy: Path) -> None:
    """Write the model to ``policy``."""
    write_solutions(job, folder / SOLUTIONS)
    config = config_of(job)
    start = {"traces": str(folder / SOLUTIONS), "num_trajectories": job.solutions, "folder": str(folder / "warm_start")}
    algorithm = config.training(warm_start=start, max_response_tokens=SOLUTION_TOKENS).build_algo()
    algorithm.export_policy(policy)
    algorithm.stop()
    shutil.rmtree(folder / "warm_start")  # the same model once more
