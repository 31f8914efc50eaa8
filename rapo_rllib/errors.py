"""Error types at the boundaries of a rollout.

Users' mistakes (a wrong key, a missing file) are plain ``ValueError``s that name the key, the value and the fix. The types
here are for parts of the world that fail while training runs. ``rollout/loop.py`` is the one place that catches the ones that
cost a single trajectory; it ends that trajectory with ``error`` and counts it. Bad code written by the model is none of
these: it is an observation.
"""


class RolloutError(Exception):
    """Base of everything that can go wrong between a question and its trajectory."""


class ToolError(RolloutError):
    """A tool itself is broken (not the model's call of it): it cannot start, or its service is gone."""


class RetrievalError(RolloutError):
    """The Step-Trace Buffer or its embedder did not answer."""


class EngineError(RolloutError):
    """The inference engine raised, died, or returned something impossible."""


class EnvError(RolloutError):
    """A text environment raised in ``reset`` or ``step``."""


class WeightSyncError(RuntimeError):
    """An engine does not hold the weights that the learner sent. Training must not go on."""


class LearnerError(RuntimeError):
    """A learner could not compute an update (raised on all ranks together)."""
