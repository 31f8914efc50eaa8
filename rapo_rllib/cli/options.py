"""Options of the command line beside the file; None: as the file says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import typer


@dataclass(frozen=True)
class RunOptions:
    """Options of ``rllib train file``."""

    stop: dict[str, Any] | None = None
    overrides: list[tuple[str, Any]] = field(default_factory=list)  # (dotted key, value)
    storage_path: str | None = None
    num_samples: int | None = None
    restore: str | None = None
    resume: bool = False
    ray_address: str | None = None
    ray_num_cpus: int | None = None
    verbose: int = 0

    @property
    def log_level(self) -> str | None:
        """RLlib's ``log_level`` for ``-v`` and ``-vv``."""
        return {0: None, 1: "INFO"}.get(self.verbose, "DEBUG")


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """The value of an option that is a JSON object. Raises ``typer.BadParameter`` if it is none."""
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
    """Key and value of ``--set key=value``. Raises ``typer.BadParameter`` if it is no such thing."""
    from rapo_rllib.cli.yaml_text import yaml_value

    key, separator, text = item.partition("=")
    if not separator or not key:
        raise typer.BadParameter(f"--set {item!r}: must be key=value")
    try:
        return key, yaml_value(text)
    except ValueError as error:
        raise typer.BadParameter(f"--set {item!r}: {error}") from error
