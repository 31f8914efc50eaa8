"""``rllib tools list``: the tools that a job's environment offers to the policy; MCP servers are asked for their tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rapo_rllib.cli.jobs import job_config
from rapo_rllib.cli.options import Overrides
from rapo_rllib.cli.terminal import one_line_errors
from rapo_rllib.tools.schema import call_form

tools_app = typer.Typer(no_args_is_help=True, help="The tools of a job.")


@tools_app.command("list")
def list_tools(
    job: Annotated[Path, typer.Argument(help="A file of one training, as for `rllib train file`.", dir_okay=False)],
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="The JSON schemas, as a chat template gets them.")] = False,
) -> None:
    """Show name, description and arguments of every tool that the policy of a job may call."""
    with one_line_errors():
        config = job_config(job, set_)
        env = config.question_source.env_maker()()
        try:
            tags = tuple(getattr(env.unwrapped, "tool_tags", ()))
            schemas = {one["function"]["name"]: one["function"] for one in getattr(env.unwrapped, "tool_schemas", None) or ()}
        finally:
            env.close()
    if as_json:
        typer.echo(json.dumps([{"type": "function", "function": one} for one in schemas.values()], ensure_ascii=False))
        return
    for tag in dict.fromkeys([*tags, *schemas]):
        _show(tag, schemas.get(tag))
    if not tags and not schemas:
        typer.echo("The policy of this job has no tools.")
    elif config.settings.protocol.format == "native":
        typer.echo("A call is written as the model's chat template has calls (protocol.format = 'native').")
    else:
        typer.echo("A call is written as:")
        for tag in tags:
            shown = schemas.get(tag)
            typer.echo(f"    {call_form(tag, None if shown is None else {'type': 'function', 'function': dict(shown)})}")


def _show(tag: str, function: Mapping[str, Any] | None) -> None:
    typer.secho(tag, bold=True, nl=False)
    if function is None:
        typer.echo(f": one text, between <{tag}> and </{tag}>")
        return
    typer.echo(f": {' '.join(function['description'].split())}")
    parameters = function["parameters"]
    for name, declared in parameters.get("properties", {}).items():
        declared = declared if isinstance(declared, Mapping) else {}  # a schema may be `true`: anything
        kind = declared.get("type", "anything")
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        optional = "" if name in parameters.get("required", ()) else ", may be left out"
        meaning = f": {declared['description']}" if declared.get("description") else ""
        typer.echo(f"    {name} ({kind}{optional}){meaning}")
