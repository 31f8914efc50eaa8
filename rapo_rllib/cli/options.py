"""Options that several commands share, and parsers of their values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from rapo_rllib.cli.values import yaml_value

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="lr=1e-5, scheduler.type=asha: a key in place of the job's.", show_default=False),
]

# of a Milvus collection
Uri = Annotated[str, typer.Option(help="A Milvus Lite path ending in .db, or http(s)://host:port, with or without /database.")]
Collection = Annotated[str, typer.Option(help="Name of the Milvus collection.")]
NewEmbedder = Annotated[
    str | None,
    typer.Option(
        "--embedder", help="sentence-transformers folder, id, or all-minilm-l6-v2 (which a new collection gets by default)."
    ),
]

# of models that answer questions
Seed = Annotated[int | None, typer.Option(help="Of the sampling (default: the job's, or 0; none is sent to an endpoint).")]
KeyVariables = Annotated[
    list[str] | None,
    typer.Option(help="Variable that holds the endpoint's key, or HOST=VARIABLE (default: AGENT_API_KEY; unset: no key)."),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests at a time, of an endpoint.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Of one request to an endpoint.")]
Extra = Annotated[
    str | None, typer.Option(help="Further fields of its requests, as JSON; null leaves one of ours out.", show_default=False)
]


@dataclass(frozen=True)
class RunOptions:
    """Options of ``rllib train file``."""

    overrides: list[tuple[str, Any]] = field(default_factory=list)  # (dotted key, value), put over the file's
    replaced: dict[str, Any] = field(default_factory=dict)  # whole entries beside `config`; None: as the file says
    resume: bool = False
    ray_address: str | None = None
    ray_num_cpus: int | None = None
    verbose: int = 0


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """Parse an option's value as a JSON object; None stays None. Raises ``typer.BadParameter`` for anything else."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"{option}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{option}: must be a JSON object such as '{{\"name\": 10}}'")
    return value


def key_value(item: str) -> tuple[str, Any]:
    """Split ``key=value`` of ``--set``, and parse the value as YAML. Raises ``typer.BadParameter`` if that fails."""
    key, separator, text = item.partition("=")
    if not separator or not key:
        raise typer.BadParameter(f"--set {item!r}: must be key=value")
    try:
        return key, yaml_value(text)
    except ValueError as error:
        raise typer.BadParameter(f"--set {item!r}: {error}") from error
