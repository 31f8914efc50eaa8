"""One line per event of a training, for people and for logs."""

from __future__ import annotations

from typing import Any

import typer
from ray.tune import Callback


class TrainingReporter(Callback):
    """Prints what trials do."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial started."""
        typer.echo(f"[{trial}] started; results go to {trial.path}")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        """An iteration ended."""
        typer.echo(f"[{trial}] {result_line(result)}")

    def on_checkpoint(self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """A checkpoint was written."""
        typer.echo(f"[{trial}] checkpoint {checkpoint.path}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial failed."""
        typer.secho(f"[{trial}] failed; the whole error is in {trial.path}/error.txt", err=True, fg="red")


def result_line(result: dict[str, Any]) -> str:
    """Iteration, time, reward; for language models also accuracy, tokens/s, and where the seconds went."""
    parts = [f"iteration {result['training_iteration']}", f"{result['time_total_s']:.1f} s"]
    sampled = result.get("env_runners", {})
    if (reward := sampled.get("episode_return_mean")) is not None:
        parts.append(f"reward {float(reward):.3f}")
    if "tokens_per_s" in sampled:
        parts.append(f"{float(sampled['tokens_per_s']):.0f} tokens/s")
        parts.append(f"{float(sampled['retrieval']['count']):.0f} retrievals")
        timers = result.get("timers", {})
        parts += [f"{name} {float(timers[name]):.1f} s" for name in ("rollout", "update", "sync") if name in timers]
    evaluated = result.get("evaluation", {}).get("env_runners", {})
    if "accuracy" in evaluated:
        parts.append(f"held-out accuracy {float(evaluated['accuracy']):.3f}")
    elif (evaluated_reward := evaluated.get("episode_return_mean")) is not None:
        parts.append(f"evaluation reward {float(evaluated_reward):.3f}")
    return " · ".join(parts)
