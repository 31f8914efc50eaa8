"""``rllib config``: every key of a job's ``config``, on the terminal or as the page ``docs/config.md``."""

from __future__ import annotations

from typing import Annotated

import typer

config_app = typer.Typer(no_args_is_help=True, help="The keys of a job's config.")


@config_app.command("keys")
def keys(
    words: Annotated[list[str] | None, typer.Argument(help="Show only keys with all of these in name or meaning.")] = None,
) -> None:
    """Show keys with what they must be, defaults and meanings."""
    from rapo_rllib.cli.reference import config_sections

    wanted = [word.lower() for word in words or []]
    found = 0
    for section in config_sections():
        for key in section.keys:
            if all(word in f"{key.name} {key.meaning}".lower() for word in wanted):
                found += 1
                typer.secho(key.name, bold=True, nl=False)
                typer.echo(f": {key.must_be} (default: {key.default})\n    {key.meaning}")
    if not found:
        typer.secho(f"No key has {' and '.join(map(repr, wanted))} in its name or meaning.", err=True, fg="red")
        raise typer.Exit(1)


@config_app.command("markdown")
def as_markdown() -> None:
    """Print all keys as a page of Markdown."""
    from rapo_rllib.cli.reference import markdown

    typer.echo(markdown(), nl=False)


@config_app.command("typing")
def as_types() -> None:
    """Print the types of RAPOConfig.training as a stub."""
    from rapo_rllib.cli.reference import typed

    typer.echo(typed(), nl=False)
