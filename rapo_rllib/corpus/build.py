"""Build a collection from a file of passages; a build that was stopped or killed at any time goes on where it was.

file --read_passages, once to check and count, once more--> passages --only missing ones--> PassageCollection.insert
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rapo_rllib.corpus.collection import PassageCollection
from rapo_rllib.corpus.passages import read_passages
from rapo_rllib.traces.rows import BuildProgress, windows

BATCH = 256  # passages checked and stored at a time: a kill costs at most one batch


def build_corpus(
    collection: PassageCollection,
    path: Path,
    passages_field: str | None = None,
    on_progress: Callable[[BuildProgress], None] | None = None,
    replace: bool = False,
) -> BuildProgress:
    """Add the passages of a file that are not stored yet; equal ones are stored once. Other passages stay.

    The whole file is read and checked before anything is embedded. Processes that build at the same time store the same rows.

    Args:
        collection: takes the passages; created if it does not exist.
        path: a .jsonl or .jsonl.gz file.
        passages_field: field of a row that holds a list of passages; None: every row is a passage.
        on_progress: told after every batch.
        replace: first delete what the collection holds, but only after the whole file was checked.

    Raises:
        ValueError: the file is wrong, or the collection was made with another embedder.
        RetrievalError: Milvus does not answer, or another process has this Lite path open.
    """
    total = sum(1 for _ in read_passages(path, passages_field))
    if total == 0:
        raise ValueError(f"{path} holds no passages")
    if replace:
        if collection.exists():
            collection.facts()  # what is no corpus is refused
        collection.drop()
    facts, name = collection.create(), str(Path(path).expanduser().absolute())
    progress = BuildProgress(0, 0, total)
    for batch in windows(read_passages(path, passages_field), BATCH):
        missing = collection.missing(batch)
        if missing and name not in facts["begun"]:
            facts = {**facts, "begun": [*facts["begun"], name]}
            collection.set_facts(facts)
        if missing:
            collection.insert(missing)
        progress = BuildProgress(progress.done + len(batch), progress.embedded + len(missing), total)
        if on_progress:
            on_progress(progress)
    if name in facts["begun"]:
        collection.settle()
    facts = collection.facts()  # another file may have been begun, or have become whole, meanwhile
    begun = [other for other in facts["begun"] if other != name and not _was_moved(Path(other), path)]
    collection.set_facts({**facts, "files": list(dict.fromkeys([*facts["files"], name])), "begun": begun})
    return progress


def _was_moved(begun: Path, path: Path) -> bool:
    """Return whether a file that was begun is no longer there, and another of its name is whole now."""
    return begun.name == Path(path).name and not begun.exists()
