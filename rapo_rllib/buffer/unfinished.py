"""Note which imports were begun and not finished: until they are, some of their steps are missing.

Flow: ``importing.py`` notes; ``verifying.py`` and ``algorithm/off_policy.py`` tell. Imports of other files do not clear it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rapo_rllib.buffer.store import StepTraceBuffer

NOTE = "import"
NAMED = 4  # files by name; a note holds 64 KB


def begin(buffer: StepTraceBuffer, files: Sequence[Path]) -> bool:
    """Note that an import of ``files`` is under way; whether one was before, which did not finish."""
    names = _names(files)
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    unfinished = _noted(buffer)
    buffer.set_note(NOTE, {"unfinished": {**unfinished, _key(names): [*names[:NAMED], *more]}})
    return _key(names) in unfinished


def finish(buffer: StepTraceBuffer, files: Sequence[Path]) -> None:
    """Note that an import of ``files`` is complete."""
    unfinished = _noted(buffer)
    unfinished.pop(_key(_names(files)), None)
    buffer.set_note(NOTE, {"unfinished": unfinished})


def unfinished_imports(buffer: StepTraceBuffer) -> list[str]:
    """The files of each import that did not finish, as a text."""
    return [", ".join(names) for names in _noted(buffer).values()]


def _noted(buffer: StepTraceBuffer) -> dict[str, list[str]]:
    return dict((buffer.note(NOTE, {"unfinished?": {str: [str]}}) or {}).get("unfinished", {}))


def _names(files: Sequence[Path]) -> list[str]:
    return sorted(str(path.expanduser().absolute()) for path in files)


def _key(names: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()[:16]
