"""Files of questions that commands are told of: evaluation sets, training questions. As ``rapo/questions`` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rapo_rllib.buffer.leak_guard import LeakGuard


def question_texts(path: Path, option: str) -> Iterator[str]:
    """The questions of a ``.jsonl[.gz]``, ``.json``, ``.parquet`` or ``.csv`` file; rows need no answer.

    Raises:
        ValueError: the file is missing or no such file, or a row has no question.
    """
    from rapo_rllib.envs.dataset_files import is_file_name, read_rows
    from rapo_rllib.envs.dataset_rows import question_text

    if not is_file_name(str(path)):
        raise ValueError(f"{option} {path}: not a file ending in .jsonl, .jsonl.gz, .json, .parquet or .csv")
    if not path.expanduser().is_file():
        raise ValueError(f"{option} {path}: there is no such file; correct the path (now in {Path.cwd()})")
    for number, row in enumerate(read_rows(str(path), option, "test"), start=1):
        yield question_text(row, f"{path}, row {number}")


def evaluation_guard(paths: Sequence[Path] | None) -> LeakGuard | None:
    """Knows the questions of the files; None without files. Raises ``ValueError`` as :func:`question_texts`."""
    from rapo_rllib.buffer.leak_guard import LeakGuard

    if not paths:
        return None
    return LeakGuard(text for path in paths for text in question_texts(path, "--evaluation"))
