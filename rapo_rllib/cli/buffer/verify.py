"""``rllib buffer verify``: is everything in a buffer as it should be?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rapo_rllib.cli.buffer.options import (
    DEFAULT_COLLECTION,
    DEFAULT_URI,
    Collection,
    DbName,
    StoredEmbedder,
    TokenEnv,
    Uri,
    buffer_app,
    opened_as_stored,
)
from rapo_rllib.services.credentials import TOKEN_VARIABLE

if TYPE_CHECKING:
    from rapo_rllib.buffer.verifying import Verdict


@buffer_app.command("verify")
def verify(
    uri: Uri = DEFAULT_URI,
    collection: Collection = DEFAULT_COLLECTION,
    evaluation: Annotated[list[Path] | None, typer.Option(help="Questions that must not be in it; .jsonl[.gz], ….")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    embedder: StoredEmbedder = None,
    token_env: TokenEnv = TOKEN_VARIABLE,
    db_name: DbName = "",
) -> None:
    """Check every row of a buffer; exit status 1 if anything is wrong."""
    with opened_as_stored(embedder, uri=uri, collection=collection, token_env=token_env, db_name=db_name) as buffer:
        from rapo_rllib.buffer.verifying import verify as verified
        from rapo_rllib.cli.buffer.question_files import evaluation_guard
        from rapo_rllib.cli.build_display import counted

        guard = evaluation_guard(evaluation)
        with counted("step traces", quiet=as_json) as tell:
            verdict = verified(buffer, guard, tell)
        typer.echo(
            json.dumps(asdict(verdict), ensure_ascii=False) if as_json else _shown(verdict, f"{buffer.uri} ({collection})")
        )
    if verdict.findings:
        raise typer.Exit(1)


def _shown(verdict: Verdict, where: str) -> str:
    lines = [f"{where}: {verdict.rows:,} step traces"]
    if verdict.worst_cosine is not None:
        lines.append(f"{verdict.embedded_again} keys embedded again: cosine {verdict.worst_cosine:.4f} or more")
    if verdict.duplicates:
        lines.append(f"{verdict.duplicates:,} are the same step as another one, by another agent")
    for finding in verdict.findings:
        lines.append(f"WRONG: {finding.kind}: {finding.count:,}, such as {'; '.join(finding.examples)}")
    return "\n".join([*lines, "" if verdict.findings else "Nothing is wrong."]).rstrip()
