"""Choose where an evaluation's protocol, budgets, tools and engine come from: one source for all its models.

--job, else the run of the first checkpoint, else the defaults of ``RAPOConfig``; ``--set`` on top
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rapo_rllib.cli.dotted_keys import set_dotted, with_overrides
from rapo_rllib.cli.options import key_value
from rapo_rllib.cli.train.run import prepare

if TYPE_CHECKING:
    from rapo_rllib.agents.setup import AgentChoice
    from rapo_rllib.evaluation.plan import EvaluationPlan


@dataclass(frozen=True)
class SettingsSource:
    """Options of the command line about them."""

    job: Path | None
    overrides: tuple[str, ...]  # key=value

    def configs(self, choices: Sequence[AgentChoice], plan: EvaluationPlan) -> list[Any]:
        """A ``RAPOConfig`` for each model; a checkpoint whose run had other settings than are used is told about.

        Raises:
            ValueError: job or checkpoint cannot be read, or an override is not used here.
        """
        from rapo_rllib.algorithm.config import RAPOConfig
        from rapo_rllib.cli.buffer.build import job_config
        from rapo_rllib.evaluation.models import labels

        self._refuse_env_keys()
        if self.job is not None:
            return [self._used(job_config(self.job, list(self.overrides)), "env_config")] * len(choices)
        prepare(Path("here"))  # the modules of a job in this folder can be imported
        own = [_trained_config(choice) for choice in choices]
        shared = next((config for config in own if config is not None), None) or RAPOConfig()
        configs = []
        for label, choice, trained in zip(labels(choices), choices, own, strict=True):
            # whether a model's code is trusted is its own; what an endpoint writes is counted in the tokens of the shared one
            code = shared if choice.is_endpoint else trained or RAPOConfig()
            config = self._used(shared, language_model=code.language_model)
            configs.append(config)
            if trained is not None and trained is not shared:
                _tell_differences(label, choice, plan, config, self._used(trained))
        return configs

    def _used(self, base: Any, only: str = "", language_model: Any = None) -> Any:
        """``base`` with the benchmarks' environment, and with the overrides: all, or only those below one key."""
        from rapo_rllib.evaluation.settings import for_benchmarks

        config = for_benchmarks(base)
        if language_model is not None:
            config.language_model = dict(language_model)
        pairs = map(key_value, self.overrides)
        return with_overrides(config, [(key, value) for key, value in pairs if not only or key.partition(".")[0] == only])

    def _refuse_env_keys(self) -> None:
        from rapo_rllib.evaluation.settings import ENV_KEYS

        given: dict[str, Any] = {}
        for item in self.overrides:
            set_dotted(given, *key_value(item))
        for key in given.get("env_config") or {}:
            if key not in ENV_KEYS:
                raise ValueError(
                    f"--set env_config.{key}: benchmarks bring their own environment, which takes {', '.join(ENV_KEYS)} of "
                    "env_config; its questions are those of --benchmarks and --data, its scorer that of --scorer"
                )


def _trained_config(choice: AgentChoice) -> Any:
    """The config of the run that a checkpoint is of; None: the model is no checkpoint of RAPO that says."""
    from rapo_rllib.checkpoints.folder import MANIFEST
    from rapo_rllib.checkpoints.trained_config import is_rllib_checkpoint, trained_algorithm

    folder = Path(choice.name).expanduser()
    if choice.is_endpoint or not (folder / MANIFEST).is_file() or not is_rllib_checkpoint(folder):
        return None
    return trained_algorithm(folder)[1]


def _tell_differences(label: str, choice: AgentChoice, plan: EvaluationPlan, used: Any, own: Any) -> None:
    from rapo_rllib.evaluation.settings import differing, resolved_settings

    names = differing(resolved_settings(used, choice, plan), resolved_settings(own, choice, plan))
    if names:
        typer.secho(
            f"{label}: is asked with the settings of the first checkpoint; those of its own run differ in {', '.join(names)}",
            err=True,
            fg="yellow",
        )
