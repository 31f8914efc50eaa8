"""Folders as Tune and the plugin write them: results with the plugin's metrics, transcripts by its own writer."""

import json
from dataclasses import asdict
from pathlib import Path
from random import Random

from rapo_rllib.env_runner.metrics import SampleResult, rollout_metrics
from rapo_rllib.monitoring.transcripts import write_transcripts
from rapo_rllib.rollout.stats import RolloutStats
from rapo_rllib.settings import ObjectiveSettings
from rapo_rllib.types import Question, RetrievedTrace, StepTrace, Trajectory, TrajectoryGroup

TRACE = StepTrace("t", "How many?", "", "<answer>\\boxed{8}</answer>", 1.0, source="word_problems/solver")


def add_step(trajectory: Trajectory, text: str, entropies: list[float], tool: str | None = None, seen: str = "") -> None:
    """A step of one token per entropy, and the tool's result where it called one."""
    step = trajectory.append_policy([7] * len(entropies), [-0.5] * len(entropies), entropies)
    step.text, step.tool, step.observation, step.text_start = text, tool, seen, len(trajectory.text)
    trajectory.text += text
    if tool:
        step.tool_seconds = 0.02
        trajectory.text += f"\n<result>\n{seen}\n</result>\n"
        trajectory.append_observation([8] * 9)


def add_trace(trajectory: Trajectory, trace: StepTrace = TRACE, similarity: float = 0.83) -> None:
    trajectory.append_retrieved([9] * 6, RetrievedTrace(trace, similarity))
    trajectory.retrievals[-1].text_start = len(trajectory.text)
    trajectory.text += f"Additional context follows; use it if it helps.\n<retrieve>\n{trace.text}\n</retrieve>\n"


def outcome(trajectory: Trajectory, correct: bool, end: str = "answer") -> Trajectory:
    trajectory.correct, trajectory.format_ok, trajectory.end = correct, end == "answer", end
    trajectory.reward = float(correct)
    trajectory.reward_terms = {"correct": trajectory.reward, "format": 0.0}
    return trajectory


def rolled_out(question: Question, rng: Random, hybrid: bool, skill: float) -> Trajectory:
    """A trajectory with a tool call, a retrieval where it is hybrid, and an answer."""
    a, b = rng.randint(2, 30), rng.randint(2, 9)
    trajectory = Trajectory(question.id, [1, 2, 3], hybrid=hybrid, segments=[(0, 0)])

    def heat(size: int, around: float) -> list[float]:
        return [max(rng.gauss(around, around / 2), 0.0) for _ in range(size)]

    add_step(trajectory, f"<python>print({a} * {b})</python>", heat(18, 1.5 - skill), "python", str(a * b))
    if hybrid:
        add_trace(trajectory, similarity=0.7 + 0.3 * rng.random())
    right = rng.random() < skill
    end = "answer" if right or rng.random() < 0.7 else "length"
    closing = (
        f"<answer>\\boxed{{{a * b if right else a + b}}}</answer>" if end == "answer" else f"The product of {a} and {b} is the"
    )
    add_step(trajectory, closing, heat(24, 1.1 - skill if hybrid else 1.3 - skill))
    return outcome(trajectory, right, end)


def sampled(iteration: int, questions: int = 3, members: int = 4, seed: int = 0, skill: float = 0.5) -> SampleResult:
    rng = Random(f"{seed}/{iteration}")
    groups = []
    for number in range(questions):
        question = Question(f"train-{iteration}-{number}", f"Noah packs boxes of pens, case {number}. How many pens?", "8")
        rolls = [rolled_out(question, rng, hybrid=index % 2 == 0, skill=skill) for index in range(members)]
        groups.append(TrajectoryGroup(question, rolls))
    return SampleResult(groups, [RolloutStats()])


def nested(values: dict[str, float]) -> dict:
    tree: dict = {}
    for name, value in values.items():
        *folders, last = name.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return tree


def result_row(iteration: int, result: SampleResult, config: dict, done: bool = False) -> dict:
    """One line of ``result.json``."""
    row = {
        "env_runners": nested(rollout_metrics(result)) | {"rollout_s": 9.0},
        "learners": {
            "default_policy": {"gradient_norm": 1.0 + 1 / iteration, "total_loss": 0.1, "tokens_per_s": 110.0, "ratio": 1.0}
        },
        "timers": {"rollout": 9.0, "update": 14.0 - iteration / 2, "sync": 1.5, "buffer": 0.5, "training_iteration": 25.0},
        "rapo": {"accuracy_before": 0.25, "accuracy_after": 0.5},
        "training_iteration": iteration,
        "time_this_iter_s": 40.0 if iteration % 4 == 0 else 27.0,
        "time_total_s": 30.0 * iteration,
        "done": done,
        "config": {**asdict(ObjectiveSettings()), **config},
    }
    if iteration % 4 == 0:
        row["evaluation"] = {"env_runners": {"accuracy": 0.25 + iteration / 60, "rollout_s": 12.0}}
    return row


def write_trial(folder: Path, iterations: int = 4, params: dict | None = None, seed: int = 0, questions: int = 3) -> Path:
    """A whole trial that has ended."""
    params = {"retrieval_prob": 0.5, "transcripts": True, **(params or {})}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps(params), encoding="utf-8")
    rows = []
    for iteration in range(1, iterations + 1):
        skill = 0.2 + 0.6 * iteration / max(iterations, 1)
        result = sampled(iteration, questions, seed=seed, skill=skill)
        write_transcripts(str(folder / "transcripts"), f"iteration_{iteration:05d}.jsonl", result.groups)
        rows.append(result_row(iteration, result, params, done=iteration == iterations))
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
