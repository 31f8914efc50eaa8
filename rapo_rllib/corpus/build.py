"""A file of passages into a collection; may be stopped or killed at any time, and goes on where it was.

read_passages, once to check and count, once more --missing ones only--> PassageCollection.insert
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

from rapo_rllib.corpus.collection import PassageCollection
from rapo_rllib.corpus.passages import Passage, PassageFields, read_passages
from rapo_rllib.errors import RetrievalError
from rapo_rllib.milvus.lite.paths import beside, check_lite_path, exclusive_lock
from rapo_rllib.traces.rows import BuildProgress

BATCH = 256  # passages between two looks at what is stored: what a kill can cost
LOCK_TIMEOUT_S = 2.0


def build_corpus(
    collection: PassageCollection,
    path: Path,
    fields: PassageFields | None = None,
    on_progress: Callable[[BuildProgress], None] | None = None,
    replace: bool = False,
) -> BuildProgress:
    """Add the passages of a file that are not stored yet; equal ones are stored once. Other passages stay.

    The whole file is read and checked before anything is embedded.

    Args:
        collection: where to; created if it is not there.
        path: a .jsonl or .jsonl.gz file.
        fields: which fields hold what.
        on_progress: told after every batch.
        replace: delete what the collection holds, once the file is known to be right.

    Raises:
        ValueError: the file is wrong, or the collection was made with another embedder.
        RetrievalError: Milvus does not answer, or another process builds at this Lite path.
    """
    total = sum(1 for _ in read_passages(path, fields))
    if total == 0:
        raise ValueError(f"{path} holds no passages")
    with _build_lock(collection):
        if replace:
            collection.drop()
        facts = collection.create()
        files = list(dict.fromkeys([*facts["files"], str(Path(path).expanduser().absolute())]))
        progress = BuildProgress(0, 0, total)
        for batch in _batches(read_passages(path, fields)):
            missing = collection.missing(batch)
            if missing and facts["complete"]:
                facts = {**facts, "complete": False}
                collection.set_facts(facts)
            if missing:
                collection.insert(missing)
            progress = BuildProgress(progress.seen + len(batch), progress.embedded + len(missing), total)
            if on_progress:
                on_progress(progress)
        if not facts["complete"]:
            collection.settle()
        collection.set_facts({**facts, "files": files, "complete": True})
        return progress


def _batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    iterator = iter(passages)
    while batch := list(islice(iterator, BATCH)):
        yield batch


@contextmanager
def _build_lock(collection: PassageCollection) -> Iterator[None]:
    """Of several processes one builds at a Lite path; with a server each may, which stores the same rows."""
    with ExitStack() as stack:
        if collection.milvus.is_lite:
            uri = collection.milvus.uri
            check_lite_path(uri, f"{collection.place.prefix}uri")
            try:
                stack.enter_context(exclusive_lock(beside(uri, "corpus"), LOCK_TIMEOUT_S))
            except RetrievalError as error:
                raise RetrievalError(
                    f"another process is building a corpus at {uri}: wait for it, or end it ({error})"
                ) from error
        yield
