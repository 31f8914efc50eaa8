"""The transcripts of a trial that a logger has not taken yet; Tune's own loggers look into another folder of the trial's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSelector, LocalFileSystem, copy_files

FOLDER = "transcripts"


class NewTranscripts:
    """Remembers which files of which trial were taken."""

    def __init__(self) -> None:
        self._taken: defaultdict[str, set[str]] = defaultdict(set)

    def take(self, trial: Any) -> list[str]:
        """Names of the whole files in the trial's folder that were not there before, in order."""
        selector = FileSelector(transcript_folder(trial), allow_not_found=True)
        found = {Path(info.path).name for info in trial.storage.storage_filesystem.get_file_info(selector)}
        new = {name for name in found if name.endswith(".jsonl")} - self._taken[trial.trial_id]
        self._taken[trial.trial_id] |= new
        return sorted(new)


def transcript_folder(trial: Any) -> str:
    """Find a trial's transcripts, on the file system of its storage."""
    return f"{trial.storage.trial_fs_path}/{FOLDER}"


def local_folder(trial: Any, names: Sequence[str]) -> Path:
    """The folder of a trial's transcripts on this machine: itself, or one with copies of ``names`` from a remote storage."""
    source, storage = transcript_folder(trial), trial.storage.storage_filesystem
    if isinstance(storage, LocalFileSystem):
        return Path(source)
    copies = Path(trial.local_path) / FOLDER
    copies.mkdir(exist_ok=True)
    for name in names:
        with suppress(FileNotFoundError):  # it is none of the newest any more
            copy_files(f"{source}/{name}", str(copies / name), source_filesystem=storage)
    return copies


def still_there(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Those of ``names`` that have not been deleted meanwhile, each looked at when it is asked for."""
    return (name for name in names if (folder / name).is_file())
