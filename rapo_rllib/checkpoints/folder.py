"""Checkpoint folders that appear whole or not at all, each with a list of its files.

    atomic_directory(path): write into a hidden folder beside ``path`` --list files and checksums--> rename it to ``path``

Tune copies the folder to its storage file by file. In a copy that was cut short, or that mixes two checkpoints, a file is
missing or its checksum differs from the list: such a copy is refused.
"""

from __future__ import annotations

import errno
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rapo_rllib.errors import CheckpointError, shortage
from rapo_rllib.services.json_files import read_json

MANIFEST = "manifest.json"
RESULT = "result.json"  # of the iteration after which it was written
_TUNES_OWN = ".metadata.json"
_FORMAT = 2
_LISTING = {"format": int, "files": {str: [int]}, "iteration?": int}
_BLOCK = 1 << 22


@contextmanager
def atomic_directory(path: Path, **facts: Any) -> Iterator[Path]:
    """Open an empty folder that replaces ``path`` when the block ends; an exception, or a kill, leaves ``path`` as it was.

    Args:
        path: of the checkpoint; a checkpoint that is already there is replaced.
        **facts: written into the manifest, which is read without loading the checkpoint.

    Raises:
        CheckpointError: ``path`` holds something that belongs to no checkpoint, and would be lost; or the disk is full, or no
            file descriptors are left.
    """
    finish_replacement(path)
    if path.is_dir() and (strange := strangers(path, [path])):
        raise CheckpointError(f"{path} holds {strange[0]!r}, which is no checkpoint's and would be lost: name another folder")
    partial = path.with_name(f".{path.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
        partial.mkdir(parents=True)
        yield partial
        (partial / MANIFEST).write_text(json.dumps({"format": _FORMAT, **facts, "files": sums(partial)}, indent=1))
        if path.exists():
            path.rename(_replaced(path))
        partial.rename(path)
    except BaseException as error:
        told = _told(path, error) if isinstance(error, Exception) else ""
        shutil.rmtree(partial, ignore_errors=True)
        finish_replacement(path)
        if told:
            raise CheckpointError(told) from error
        raise
    shutil.rmtree(_replaced(path), ignore_errors=True)


def replace_file(file: Path, content: bytes) -> None:
    """Replace a file in one step, so that a kill leaves the old content or the new."""
    partial = file.with_name(f".{file.name}.partial")
    partial.write_bytes(content)
    partial.replace(file)


def finish_replacement(path: Path) -> None:
    """Restore a checkpoint whose replacement was killed halfway, if its place is empty."""
    if _replaced(path).exists() and not path.exists():
        _replaced(path).rename(path)


def check_whole(folder: Path) -> dict[str, Any]:
    """Compare all files with the manifest, and return it with the facts that it holds.

    Raises:
        CheckpointError: a file is missing, cut short or altered, or the manifest is missing, damaged or lists no files.
    """
    manifest = _listing(folder)
    files = manifest["files"]
    if missing := _cut_short(folder, files):
        raise CheckpointError(f"{folder} is not complete: {missing} is missing or cut short. Take an older checkpoint.")
    for name, found in sums(folder, list(files)).items():
        if found != files[name]:
            raise CheckpointError(f"{folder} is damaged: {name} is not what was written. Take an older checkpoint.")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, its files and facts; empty if there is none or it cannot be read."""
    try:
        return _listing(folder)
    except CheckpointError:
        return {}


def strangers(folder: Path, checkpoints: Iterable[Path]) -> list[str]:
    """List the names in ``folder`` that no manifest of ``checkpoints`` has, sorted."""
    listed = {name.split("/")[0] for checkpoint in checkpoints for name in read_manifest(checkpoint).get("files", ())}
    return sorted({entry.name for entry in folder.iterdir()} - listed - {MANIFEST, _TUNES_OWN})


def whole_checkpoints(parent: Path) -> list[Path]:
    """Find the complete checkpoints in a folder (e.g. a trial's), the furthest trained last; only file sizes are compared."""
    found = []
    for manifest in parent.glob(f"*/{MANIFEST}"):
        facts = read_manifest(manifest.parent)
        if facts and not _cut_short(manifest.parent, facts["files"]):
            found.append((facts.get("iteration", 0), manifest.parent))
    return [folder for _, folder in sorted(found)]


def _listing(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = read_json(folder / MANIFEST, _LISTING)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is no complete checkpoint of this package: {MANIFEST} is missing or cut short, or damaged ({error}). "
            "Take an older checkpoint."
        ) from error
    if manifest["format"] != _FORMAT or not all(len(sums) == 2 for sums in manifest["files"].values()) or not manifest["files"]:
        raise CheckpointError(
            f"{folder} is no complete checkpoint of this package: {MANIFEST} lists no files of format {_FORMAT}. Take an older "
            "checkpoint, or the version of this package that wrote it."
        )
    return manifest


def _cut_short(folder: Path, files: dict[str, list[int]]) -> str:
    """Find the first file that is missing or does not have its listed size; empty: there is none."""
    for name, (size, _) in files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != size:
            return name
    return ""


def _told(path: Path, error: Exception) -> str:
    """Say if disk or file descriptors ran out, by the error or the free space (PyTorch's errors do not tell); empty: no."""
    remedy = shortage(error)
    there = path.parent if path.parent.is_dir() else Path("/")
    if not remedy and shutil.disk_usage(there).free < _BLOCK // 4:
        remedy = shortage(OSError(errno.ENOSPC, ""))
    if not remedy:
        return ""
    lack = "there is no room on the disk of" if "disk" in remedy else "there are no file descriptors left to write in"
    return (
        f"{lack} {path.parent} for the checkpoint {path.name} ({error}). Checkpoints that were there are as they were: "
        f"{remedy}, lower checkpoint_config.num_to_keep, and go on with --resume"
    )


def _replaced(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def sums(folder: Path, names: list[str] | None = None) -> dict[str, list[int]]:
    """Compute ``{name: [size, crc32]}`` for the files in a folder, at any depth."""
    if names is None:
        names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    with ThreadPoolExecutor() as pool:  # both reading and the checksum release the GIL
        return dict(zip(names, pool.map(lambda name: _sum(folder / name), names), strict=True))


def _sum(file: Path) -> list[int]:
    crc = size = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return [size, crc]


_ARGUMENTS = "class_and_ctor_args.pkl"


def is_rllib_checkpoint(folder: Path) -> bool:
    """Check whether ``folder`` holds the files that ``Algorithm.from_checkpoint`` reads."""
    return (folder / "rllib_checkpoint.json").is_file() and (folder / _ARGUMENTS).is_file()


def trained_algorithm(folder: Path) -> tuple[Any, Any]:
    """Read the class and ``AlgorithmConfig`` of a checkpoint from its pickle: read only checkpoints that you trust.

    Raises:
        ValueError: class and config are missing, or cannot be read here.
    """
    from ray import cloudpickle

    try:
        saved = cloudpickle.loads((folder / _ARGUMENTS).read_bytes())
        ((state,), _) = saved["ctor_args_and_kwargs"]
        return saved["class"], state["class"].from_state(state)
    except ImportError as error:
        raise ValueError(
            f"{folder}: {_ARGUMENTS} cannot be read: {error}. Run the command in the folder of the job, where its modules are, "
            "or name the job by --job"
        ) from error
    except Exception as error:  # raised by any part of the config: a class that is not importable here, another version of Ray
        raise ValueError(f"{folder}: {_ARGUMENTS} cannot be read: {type(error).__name__}: {error}") from error
