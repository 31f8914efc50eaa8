"""The name under which a run stores its grown traces beside a Step-Trace Buffer.

Under Tune a run is a trial: it keeps its id when it is resumed, and when it takes over another trial's checkpoint. Outside Tune
nobody keeps a name but the checkpoint, so who goes on from one goes on under its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class RunName:
    """A name that no other run has."""

    text: str
    tunes: bool = False  # given by Tune, and so never changed

    @property
    def in_milvus(self) -> str:
        """The run's name as part of a collection's name."""
        return re.sub(r"\W", "_", self.text, flags=re.ASCII)

    def get_state(self) -> str | None:
        """Return the name for checkpoints; None if Tune names the run."""
        return None if self.tunes else self.text

    def after(self, state: str | None) -> RunName:
        """The name of this run once it has read a checkpoint with ``state``."""
        return self if self.tunes or state is None else RunName(state)
