"""The data and models that ``rllib evaluate`` names, and the keys of endpoints: one provider is not sent the key of another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from rapo_rllib.agents.setup import AgentChoice

KEY_VARIABLE = "AGENT_API_KEY"


def chosen_models(
    models: Sequence[str], seed: int | None, key_variables: Sequence[str], rest: dict[str, Any]
) -> list[AgentChoice]:
    """One choice per name.

    Args:
        models: as on the command line.
        seed: of the sampling; None: 0, and none for an endpoint.
        key_variables: ``VARIABLE``, or ``HOST=VARIABLE`` for the endpoints of one host.
        rest: of all of them.

    Raises:
        ValueError: an endpoint without its model's name, or one key for several hosts.
    """
    from rapo_rllib.agents.setup import AgentChoice

    named = [_named(model, seed) for model in models]
    hosts = [urlsplit(one["name"]).netloc if "model" in one else "" for one in named]
    variables = _variables_by_host([host for host in hosts if host], key_variables)
    return [
        AgentChoice(key="MODEL", key_variable=variables.get(host, ""), **one, **rest)
        for one, host in zip(named, hosts, strict=True)
    ]


def _named(model: str, seed: int | None) -> dict[str, Any]:
    if not model.startswith(("http://", "https://")):
        return {"name": model, "seed": 0 if seed is None else seed}
    address, _, name = model.partition("#")
    if not name:
        raise ValueError(f"{model}: how does the endpoint call its model? Write {model}#MODEL")
    return {"name": address, "model": name, "seed": seed}


def _variables_by_host(hosts: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    of_host = {host: variable for host, _, variable in (item.rpartition("=") for item in given) if host}
    for host in of_host:
        if host not in hosts:
            raise ValueError(f"--agent-key-env {host}={of_host[host]}: endpoints are at {', '.join(hosts) or 'no host'}")
    for_all = [item for item in given if "=" not in item] or [KEY_VARIABLE]
    if len(for_all) > 1:
        raise ValueError(f"--agent-key-env {', '.join(for_all)}: name one for all endpoints, or write HOST=VARIABLE")
    others = sorted({host for host in hosts if host not in of_host})
    if len(others) > 1 and os.environ.get(for_all[0]):
        raise ValueError(
            f"the key in {for_all[0]} would be sent to {' and '.join(others)}: name the variable of each by "
            "--agent-key-env HOST=VARIABLE"
        )
    return {host: of_host.get(host, for_all[0]) for host in hosts}


def chosen_data(benchmarks: str | None, data: Sequence[str]) -> dict[str, str | None]:
    """What is asked, by name: where its file is, or None for a benchmark that is loaded from Hugging Face.

    Args:
        benchmarks: names, and paths of a user's own data, with commas between; None: those of ``data``.
        data: ``NAME=PATH`` of the same.

    Raises:
        ValueError: a name that is neither a benchmark nor has a path, a path without its name, or two of one name.
    """
    from rapo_rllib.envs.benchmarks import BENCHMARKS
    from rapo_rllib.envs.dataset_files import is_file_name
    from rapo_rllib.validation import refuse_unknown_keys

    given = {name.strip().lower(): path for name, _, path in (item.partition("=") for item in data)}
    if not benchmarks and not data:
        raise ValueError(f"--benchmarks is missing: name some of {', '.join(BENCHMARKS)}, or a file of your own")
    found: dict[str, str | None] = {}
    for entry in map(str.strip, benchmarks.split(",") if benchmarks else given):
        is_path = entry.lower() not in {**BENCHMARKS, **given} and (is_file_name(entry) or Path(entry).expanduser().is_dir())
        name = Path(entry).name.split(".")[0] if is_path else entry.lower()
        path = entry if is_path else given.get(name)
        if found.setdefault(name, path) != path or (is_path and name in {**BENCHMARKS, **given}):
            raise ValueError(
                f"--benchmarks {entry}: another is called {name!r}: give it a name of its own by --data NAME={entry}"
            )
    for name, path in given.items():
        if name not in found or not path:
            raise ValueError(f"--data {name}={path}: must be NAME=PATH of a benchmark that --benchmarks names")
    try:
        refuse_unknown_keys([name for name, path in found.items() if path is None], BENCHMARKS, "benchmark ")
    except ValueError as error:
        raise ValueError(f"{error}; or say where its questions are by --data NAME=PATH") from None
    return found
