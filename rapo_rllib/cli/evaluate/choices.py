"""The models and the data that commands name, and the keys of endpoints: one provider is not sent the key of another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from rapo_rllib.agents.setup import AgentChoice

KEY_VARIABLE = "AGENT_API_KEY"
Seed = Annotated[int | None, typer.Option(help="Of the sampling (default: the job's, or 0; none is sent to an endpoint).")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key=value, a config key in place of the job's.")]
KeyVariables = Annotated[
    list[str] | None,
    typer.Option(help="Variable that holds the endpoint's key, or HOST=VARIABLE (default: AGENT_API_KEY; unset: no key)."),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests at a time, of an endpoint.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Of one request to an endpoint.")]
Extra = Annotated[
    str | None, typer.Option(help="Further fields of its requests, as JSON; null leaves one of ours out.", show_default=False)
]


def chosen_models(
    models: Sequence[str], key_variables: Sequence[str] | None, requests: dict[str, Any], **sampling: Any
) -> dict[str, AgentChoice]:
    """Return one choice per model, by its short name; a repeated short name gets the model's position.

    Args:
        models: as on the command line.
        key_variables: ``VARIABLE``, or ``HOST=VARIABLE`` for the endpoints of one host.
        requests: how endpoints are asked, all alike.
        sampling: of all models.

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
        benchmarks: with commas between: names, ``NAME=PATH`` of a local copy or a user's own data, or its path alone.

    Raises:
        ValueError: a name that is neither a benchmark nor has a path, or two of one name.
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
            if name in BENCHMARKS:
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
