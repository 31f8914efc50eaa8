"""Choose the models, the data and the settings of an evaluation.

The settings (protocol, budgets, tools, engine) are the same for all models: those of --job, else of the run of the first
checkpoint, else the defaults of ``RAPOConfig``; ``--set`` overrides them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from rapo_rllib.cli.jobs import job_config, prepare
from rapo_rllib.cli.values import set_dotted, with_overrides

if TYPE_CHECKING:
    from rapo_rllib.agents.setup import AgentChoice
    from rapo_rllib.evaluation.models import AskedBenchmark

KEY_VARIABLE = "AGENT_API_KEY"  # sent to one host alone: one provider does not get the key of another
Changes = Sequence[tuple[str, Any]]  # dotted config keys and their values


def chosen_models(
    models: Sequence[str], key_variables: Sequence[str] | None, requests: dict[str, Any], **sampling: Any
) -> dict[str, AgentChoice]:
    """Make one choice per model, by its short name; a repeated short name gets the model's position appended.

    Args:
        models: as on the command line.
        key_variables: ``VARIABLE``, or ``HOST=VARIABLE`` for the endpoints of one host.
        requests: options of the requests to every endpoint.
        sampling: further fields of every ``AgentChoice``, such as ``samples``.

    Raises:
        ValueError: an endpoint without its model's name, or one key for several hosts.
    """
    from rapo_rllib.agents.endpoint import EndpointOptions
    from rapo_rllib.agents.setup import AgentChoice, split_endpoint

    endpoints = [split_endpoint(model) for model in models]
    hosts = ["" if endpoint is None else urlsplit(endpoint[0]).netloc for endpoint in endpoints]
    variables = _variables_by_host([host for host in hosts if host], key_variables or [])
    found: dict[str, AgentChoice] = {}
    for number, (model, endpoint, host) in enumerate(zip(models, endpoints, hosts, strict=True), start=1):
        options = None if endpoint is None else EndpointOptions(*endpoint, key_variable=variables[host], **requests)
        choice = AgentChoice(model, endpoint=options, **sampling)
        found[f"{choice.short_name} ({number})" if choice.short_name in found else choice.short_name] = choice
    return found


def _variables_by_host(hosts: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    of_host = {host: variable for host, _, variable in (item.rpartition("=") for item in given) if host}
    for host in of_host:
        if host not in hosts:
            raise ValueError(f"--agent-key-env {host}={of_host[host]}: endpoints are at {', '.join(hosts) or 'no host'}")
    for_all = [item for item in given if "=" not in item] or [KEY_VARIABLE]
    others = sorted({host for host in hosts if host not in of_host})
    if len(for_all) > 1 or (len(others) > 1 and os.environ.get(for_all[0])):
        raise ValueError(
            f"the key in {' or '.join(for_all)} would be sent to {' and '.join(others)}: name the variable of each by "
            "--agent-key-env HOST=VARIABLE"
        )
    return {host: of_host.get(host, for_all[0]) for host in hosts}


def chosen_data(benchmarks: str | None) -> dict[str, str | None]:
    """Map the name of each data set to its file, or to None if it is loaded from Hugging Face.

    Args:
        benchmarks: names, ``NAME=PATH`` of a local copy or of a user's own data, or only the path of such data; with commas.

    Raises:
        ValueError: nothing is named, a name is neither a benchmark nor has a path, or two data sets have one name.
    """
    from rapo_rllib.envs.benchmarks import BENCHMARKS
    from rapo_rllib.envs.dataset_files import is_file_name
    from rapo_rllib.validation import refuse_unknown_keys

    if not benchmarks:
        raise ValueError(f"--benchmarks is missing: name some of {', '.join(BENCHMARKS)}, or a file of your own")
    found: dict[str, str | None] = {}
    for entry in map(str.strip, benchmarks.split(",")):
        name, _, path = entry.partition("=")
        if not path and name.lower() not in BENCHMARKS and (is_file_name(name) or Path(name).expanduser().is_dir()):
            name, path = Path(name).name.split(".")[0], name
            if name.lower() in BENCHMARKS:
                raise ValueError(f"--benchmarks {entry}: is it a copy of {name!r}? Write {name}={path}, or another name")
        name = name.lower() if name.lower() in BENCHMARKS else name
        if name in found:
            raise ValueError(f"--benchmarks {entry}: another is called {name!r}: give one a name of its own by NAME=PATH")
        found[name] = path or None
    try:
        refuse_unknown_keys([name for name, path in found.items() if path is None], BENCHMARKS, "benchmark ")
    except ValueError as error:
        raise ValueError(f"{error}; or say where its questions are by NAME=PATH") from None
    return found


def env_overrides(overrides: Changes) -> dict[str, Any]:
    """Select the overrides of ``env_config``. Raises ``ValueError`` for one that an evaluation would not read."""
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
    choices: dict[str, AgentChoice], asked: Sequence[AskedBenchmark], job: Path | None, overrides: Changes
) -> list[Any]:
    """Make a ``RAPOConfig`` for each model, and warn of checkpoints whose own runs had other settings.

    Raises:
        ValueError: job or checkpoint cannot be read, or an override is not used here.
    """
    from rapo_rllib.agents.journal import differing
    from rapo_rllib.algorithm.config import RAPOConfig
    from rapo_rllib.evaluation.models import for_benchmarks, model_settings
    from rapo_rllib.monitoring.metrics_flat import flattened

    def used(base: Any) -> Any:
        return with_overrides(for_benchmarks(base), overrides)

    if job is not None:
        return [used(job_config(job))] * len(choices)
    prepare(Path("here"))  # the modules of a job in this folder can be imported
    own = {label: _trained_config(choice) for label, choice in choices.items()}
    shared = next((config for config in own.values() if config is not None), None) or RAPOConfig()
    configs = []
    for label, choice in choices.items():
        base, trained = shared.copy(copy_frozen=False), own[label]
        # a model keeps its own run's `model` keys (trust_remote_code); endpoints' texts are counted in tokens of the shared one
        base.language_model = dict((shared if choice.endpoint else trained or RAPOConfig()).language_model)
        configs.append(used(base))
        if trained is not None and trained is not shared:
            ours, theirs = (flattened(model_settings(each, choice, asked), ".") for each in (configs[-1], used(trained)))
            if names := differing(ours, theirs):
                told = f"is asked with the settings of the first checkpoint; those of its own run differ in {', '.join(names)}"
                typer.secho(f"{label}: {told}", err=True, fg="yellow")
    return configs


def _trained_config(choice: AgentChoice) -> Any:
    """Read the config of the run that wrote a checkpoint; None: the model is no checkpoint of RAPO, or one without a config."""
    from rapo_rllib.checkpoints.folder import MANIFEST, is_rllib_checkpoint, trained_algorithm

    folder = Path(choice.name).expanduser()
    if choice.endpoint or not (folder / MANIFEST).is_file() or not is_rllib_checkpoint(folder):
        return None
    return trained_algorithm(folder)[1]
