"""Error types at the boundaries of a rollout.

Users' mistakes (a wrong key, a missing file) are plain ``ValueError``s that name the key, the value and the fix. The types
here are for parts of the world that fail while training runs. ``rollout/loop.py`` is the one place that catches the ones that
cost a single trajectory; it ends that trajectory with ``error`` and counts it. Bad code written by the model is none of
these: it is an observation.
"""

from __future__ import annotations

import errno
import os
import re
from concurrent.futures import Future

_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or have its quota raised",
    errno.EMFILE: "raise the number of file descriptors that a process may have (ulimit -n)",
    errno.ENFILE: "raise the number of file descriptors of the machine (fs.file-max)",
}


def shortage(error: BaseException | str) -> str:
    """Tell what to do where an error, by its number or its words, says that disk or descriptors ran out; empty: it does not."""
    number = getattr(error, "errno", None)
    return next((remedy for at, remedy in _REMEDIES.items() if at == number or os.strerror(at) in str(error)), "")


def error_kind(message: str) -> str:
    """Return the first line of an error without its numbers, so that equal ones are counted together."""
    return re.sub(r"\d+(\.\d+)?", "N", (message.splitlines() or [""])[0])[:160]


class RolloutError(Exception):
    """Base of everything that can go wrong between a question and its trajectory."""


class ToolError(RolloutError):
    """A tool itself is broken (not the model's call of it): it cannot start, or its service is gone."""


class BusyError(ToolError):
    """A tool has nothing free for another trajectory, which is to begin when ``free`` is done."""

    def __init__(self, message: str, free: Future[None]) -> None:
        super().__init__(message)
        self.free = free


class RetrievalError(RolloutError):
    """Milvus (the Step-Trace Buffer, a corpus) or an embedder did not answer."""


class EngineError(RolloutError):
    """The inference engine raised, died, or returned something impossible."""


class RequestError(RolloutError):
    """One request is refused (for example too long, or its prompt over the budget); the others run on."""


class GivenUpError(RolloutError):
    """A trajectory is not wanted any more: its group has become too old to train on."""


class AgentError(RolloutError):
    """An off-policy agent cannot be asked at all, or does not write; building a buffer with it stops."""


class EnvError(RolloutError):
    """A text environment could not be made, raised, or has not returned in time; another one may do better."""


def is_late(error: BaseException | None) -> bool:
    """Return whether a deadline was over: the error, or a cause of it, is a ``TimeoutError``."""
    return error is not None and (isinstance(error, TimeoutError) or is_late(error.__cause__))


class WeightSyncError(RuntimeError):
    """An engine does not hold the weights that the learner sent. Training must not go on."""


class LearnerError(RuntimeError):
    """A learner could not compute an update (raised on all ranks together), or died in any call."""


class OutOfStepError(LearnerError):
    """A learner has left a pass through sharded weights in which the others wait for it: the group is lost."""


class NotFiniteError(LearnerError):
    """Loss or gradient were NaN or infinite too often in a row (raised on all ranks together)."""


class CheckpointError(RuntimeError):
    """A checkpoint is not complete, is damaged, or belongs to something else."""


class ServiceError(Exception):
    """A web service refused, did not answer, or answered with something else than JSON.

    The caller of the service turns it into an observation, a score or a ``ToolError``.
    """

    def __init__(
        self, message: str, status: int | None = None, passes: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status  # of HTTP; None: no answer
        self.passes = passes  # another try may help
        self.retry_after_s = retry_after_s
        self.timed_out = False  # it was too slow
        self.body = b""  # the start of what came with the status; never shown, it may repeat the request
