"""RLlib's ``LearnerGroup`` for learners whose weights may be sharded: whoever asks for state, asks all learners at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ray.rllib.core import COMPONENT_LEARNER
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.annotations import override
from ray.rllib.utils.typing import StateDict


class RAPOLearnerGroup(LearnerGroup):
    """RLlib's, made from the first learner's answers, for which the others give their shards."""

    @override(LearnerGroup)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> StateDict:
        """RLlib's, which would ask the first learner alone; of several with shards it would wait for the others for ever."""
        if self.is_local or not self._check_component(COMPONENT_LEARNER, components, not_components):
            state: StateDict = super().get_state(components, not_components=not_components, **kwargs)
            return state
        wanted = self._get_subcomponents(COMPONENT_LEARNER, components)
        unwanted = self._get_subcomponents(COMPONENT_LEARNER, not_components)

        def from_all(learner: Any, _: Any = None) -> StateDict | None:
            state: StateDict | None = learner.state_from_all(wanted, unwanted, **kwargs)
            return state

        return {COMPONENT_LEARNER: self._get_results(self.foreach_learner(from_all))[0]}
