"""Choose where an evaluation's protocol, budgets, tools and engine come from: one source for all its models.

--job, else the run of the first checkpoint, else the defaults of ``RAPOConfig``; ``--set`` on top
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rapo_rllib.cli.dotted_keys import set_dotted, with_overrides
from rapo_rllib.cli.train.run import prepare

if TYPE_CHECKING:
    from rapo_rllib.agents.setup import AgentChoice
    from rapo_rllib.evaluation.models import AskedBenchmark

Overrides = Sequence[tuple[str, Any]]  # dotted config keys


def env_overrides(overrides: Overrides) -> dict[str, Any]:
    """Return the overrides of ``env_config``. Raises ``ValueError`` where an evaluation would not read one."""
    from rapo_rllib.evaluation.models import ENV_KEYS

    given: dict[str, Any] = {}
    for key, value in overrides:
        set_dotted(given, key, value)
    found: dict[str, Any] = given.get("env_config") or {}
    for key in found:
        if key not in (*ENV_KEYS, "scorer"):
            raise ValueError(
                f"--set env_config.{key}: benchmarks bring their own environment, which takes {', '.join(ENV_KEYS)}, scorer of "
                "env_config; its questions are those of --benchmarks"
            )
    return found


def configs_of(
    choices: dict[str, AgentChoice], asked: Sequence[AskedBenchmark], job: Path | None, overrides: Overrides
) -> list[Any]:
    """A ``RAPOConfig`` for each model; a checkpoint whose run had other settings than are used is told about.

    Raises:
        ValueError: job or checkpoint cannot be read, or an override is not used here.
    """
    from rapo_rllib.agents.journal import differing
    from rapo_rllib.algorithm.config import RAPOConfig
    from rapo_rllib.cli.buffer.build import job_config
    from rapo_rllib.evaluation.models import for_benchmarks, model_settings
    from rapo_rllib.monitoring.metrics_flat import flattened

    def used(base: Any) -> Any:
        return with_overrides(for_benchmarks(base), overrides)

    if job is not None:
        return [used(job_config(job, []))] * len(choices)
    prepare(Path("here"))  # the modules of a job in this folder can be imported
    own = {label: _trained_config(choice) for label, choice in choices.items()}
    shared = next((config for config in own.values() if config is not None), None) or RAPOConfig()
    configs = []
    for label, choice in choices.items():
        base, trained = shared.copy(copy_frozen=False), own[label]
        # whether a model's code is trusted is its own; what an endpoint writes is counted in the tokens of the shared one
        base.language_model = dict((shared if choice.endpoint else trained or RAPOConfig()).language_model)
        configs.append(used(base))
        if trained is not None and trained is not shared:
            ours, theirs = (flattened(model_settings(each, choice, asked), ".") for each in (configs[-1], used(trained)))
            if names := differing(ours, theirs):
                told = f"is asked with the settings of the first checkpoint; those of its own run differ in {', '.join(names)}"
                typer.secho(f"{label}: {told}", err=True, fg="yellow")
    return configs


def _trained_config(choice: AgentChoice) -> Any:
    """The config of the run that a checkpoint is of; None: the model is no checkpoint of RAPO that says."""
    from rapo_rllib.checkpoints.folder import MANIFEST
    from rapo_rllib.checkpoints.trained_config import is_rllib_checkpoint, trained_algorithm

    folder = Path(choice.name).expanduser()
    if choice.endpoint or not (folder / MANIFEST).is_file() or not is_rllib_checkpoint(folder):
        return None
    return trained_algorithm(folder)[1]
