"""Error types at the boundaries of a rollout.

Users' mistakes (a wrong key, a missing file) are plain ``ValueError``s that name the key, the value and the fix. The types
here are for failures while training runs. ``rollout/loop.py`` alone catches the errors that cost a single trajectory; it ends
that trajectory with ``error`` and counts it. Bad code written by the model raises none of them: it gives an observation.
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
    """Find the remedy for an error whose number or message says that disk or descriptors ran out; empty for other errors."""
    number = getattr(error, "errno", None)
    return next((remedy for at, remedy in _REMEDIES.items() if at == number or os.strerror(at) in str(error)), "")


def error_kind(message: str) -> str:
    """Replace the numbers in the first line of an error by ``N``, so that equal errors are counted together."""
    return re.sub(r"\d+(\.\d+)?", "N", (message.splitlines() or [""])[0])[:160]


class RolloutError(Exception):
    """Base of everything that can go wrong between a question and its trajectory."""


class ToolError(RolloutError):
    """Failure of a tool itself, not of the model's call: it cannot start, or its service is gone."""


class BusyError(ToolError):
    """Refusal of a tool that has no free session for another trajectory; the trajectory can begin when ``free`` is done."""

    def __init__(self, message: str, free: Future[None]) -> None:
        super().__init__(message)
        self.free = free


class RetrievalError(RolloutError):
    """Failure of Milvus (the Step-Trace Buffer, a corpus) or of an embedder to answer."""


class EngineError(RolloutError):
    """Failure of the inference engine: it raised, died, or returned something impossible."""


class RequestError(RolloutError):
    """Refusal of one request (for example too long, or its prompt over the budget); other requests go on."""


class GivenUpError(RolloutError):
    """End of a trajectory that is no longer wanted: its group has become too old to train on."""


class AgentError(RolloutError):
    """Failure of an off-policy agent: it cannot be asked at all, or its attempts fail. Building a buffer with it stops."""


class EnvError(RolloutError):
    """Failure of a text environment: it could not be made, raised, or did not return in time; another one may do better."""


def is_late(error: BaseException | None) -> bool:
    """Return whether a deadline passed: the error, or one of its causes, is a ``TimeoutError``."""
    return error is not None and (isinstance(error, TimeoutError) or is_late(error.__cause__))


class WeightSyncError(RuntimeError):
    """Failure to sync weights: an engine does not hold the weights that the learner sent. Training must not go on."""


class LearnerError(RuntimeError):
    """Failure of a learner: it could not compute an update (raised on all ranks together), or died in any call."""


class OutOfStepError(LearnerError):
    """Exit of a learner from a pass through sharded weights in which other learners wait for it: the learner group is lost."""


class NotFiniteError(LearnerError):
    """Loss or gradient that was NaN or infinite too many times in a row (raised on all ranks together)."""


class CheckpointError(RuntimeError):
    """Checkpoint that is incomplete, damaged, or belongs to something else."""


class ServiceError(Exception):
    """Failure of a web service: it refused, did not answer, or answered with something other than JSON.

    The caller of the service turns it into an observation, a score or a ``ToolError``.
    """

    def __init__(
        self, message: str, status: int | None = None, passes: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status  # HTTP status; None: no answer
        self.passes = passes  # another try may help
        self.retry_after_s = retry_after_s
        self.timed_out = False  # whether the service was too slow
        self.body = b""  # the start of the response's body; never shown, since it may repeat the request
